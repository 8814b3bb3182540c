#!lua flags=allow-oom
-- Takes an ended turn's answer out of sight: its record goes, or, when a key names it, is kept as that key's receipt only.
--
-- KEYS[1] record        hash: the turn
-- KEYS[2] events        stream: what its client was sent
-- -> {'hidden', now}           out of sight, now or before
-- -> {'live', now}             it has not ended; nothing done

--- @include lib/clock
--- @include lib/expect

local record, events = KEYS[1], KEYS[2]
local now = store_ms()

expect('stream', events)
local found = redis.call('HMGET', record, 'state', 'key')
if found[1] == 'running' or found[1] == 'accepted' then
  return {'live', now}
elseif found[1] and found[2] and found[2] ~= '' then
  redis.call('HSET', record, 'hidden', '1')
  redis.call('HDEL', record, 'about')
elseif found[1] then
  redis.call('UNLINK', record, events)
end
return {'hidden', now}
