#!lua flags=allow-oom
-- Erases a bounded number of a retired session's leftovers. An answer that a keyed client received is kept as its receipt
-- until its retention ends, unless receipts were to go as well; everything else of a turn goes.
--
-- KEYS[1] leftovers     zset: turns of the retired session that may still have a record
-- KEYS[2] erasing       hash: <cid>:<generation> -> keep or all
-- KEYS[3...] records    for each turn its record (hash), then its events (stream)
-- ARGV[1] field         <cid>:<generation>
-- ARGV[2...] turns      the turns, in the order of the keys
-- -> {'erased', now, left}     how many turns are left; 0 when all is done

--- @include lib/clock
--- @include lib/expect

local leftovers, erasing, field = KEYS[1], KEYS[2], ARGV[1]
local now = store_ms()

expect('zset', leftovers)
expect('hash', erasing)
for i = 2, #ARGV do
  expect('hash', KEYS[2 * i - 1])
  expect('stream', KEYS[2 * i])
end

local all = redis.call('HGET', erasing, field) == 'all'
for i = 2, #ARGV do
  local record, events = KEYS[2 * i - 1], KEYS[2 * i]
  if redis.call('ZREM', leftovers, ARGV[i]) == 1 then
    local key = redis.call('HGET', record, 'key')
    redis.call('UNLINK', events)
    if key and key ~= '' then
      redis.call('HDEL', record, 'request')
      if redis.call('HGET', record, 'kept') == 'events' then
        redis.call('HSET', record, 'kept', 'body')
      end
      if all then
        redis.call('HSET', record, 'kept', 'none', 'body', '', 'headers', '')
      end
    else
      redis.call('UNLINK', record)
    end
  end
end
local left = redis.call('ZCARD', leftovers)
if left == 0 then
  redis.call('HDEL', erasing, field)
end
return {'erased', now, left}
