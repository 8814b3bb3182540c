#!lua
-- Adds to a session without a turn: messages to its transcript, or what its client notes of it.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] messages      list: its transcript
-- KEYS[3] live          set: turns of it granted and not ended
-- KEYS[4] running       zset: turn -> lease deadline, of the tenant
-- ARGV[1] session       its id
-- ARGV[2] token         the caller's, made before the call: repeated, it is answered as the first time
-- ARGV[3] notes         opaque bytes that replace those before, or ''
-- ARGV[4] lease_ms      length of a lease
-- ARGV[5...] items      messages, opaque bytes
-- -> {'edited', now, length}           messages in the transcript now
-- -> {'not_found', now}                the session is not current
-- -> {'busy', now, holder, left_ms}    a turn is running, whose transcript they would get into

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease

local conversation, messages, live, running = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local session, token, notes, lease_ms = ARGV[1], ARGV[2], ARGV[3], integer(ARGV[4], 'lease_ms')
local now = store_ms()

local length = expect('list', messages)
expect('set', live)
expect('zset', running)

local found = redis.call('HMGET', conversation, 'session', 'edit_token', 'holder')
if found[1] ~= session then
  return {'not_found', now}
elseif found[2] == token then
  return {'edited', now, length}
end
local alive = #ARGV > 4 and split_live(live, running, now, lease_ms)[1]
if alive then
  return {'busy', now, found[3] or '', lease_left(running, alive, now)}
end
for i = 5, #ARGV do
  length = redis.call('RPUSH', messages, ARGV[i])
end
redis.call('HSET', conversation, 'edit_token', token)
if notes ~= '' then
  redis.call('HSET', conversation, 'notes', notes)
end
return {'edited', now, length}
