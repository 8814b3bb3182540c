#!lua flags=allow-oom
-- Erases a bounded number of what retired sessions of a conversation left. An answer that a keyed client received is kept
-- as its receipt until its retention ends, unless receipts were to go as well; everything else of a turn goes.
--
-- KEYS[1] leftovers     zset: turns of retired sessions that may still have a record; those that fit `receipts`
-- KEYS[2] others        zset: the same, of the other kind
-- KEYS[3] erasing       set: cids with leftovers
-- KEYS[4...] records    for each turn its record (hash), then its events (stream)
-- ARGV[1] cid           the conversation
-- ARGV[2] receipts      keep or all: whether receipts are erased too
-- ARGV[3] receipt_ms    how long a receipt may be kept from now
-- ARGV[4...] turns      the turns, in the order of the keys
-- -> {'erased', now, left}     how many turns of this kind are left; 0 when all is done

--- @include lib/clock
--- @include lib/expect
--- @include lib/number

local leftovers, others, erasing, cid, receipts = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local receipt_ms = integer(ARGV[3], 'receipt_ms')
local now = store_ms()

expect('zset', leftovers)
expect('zset', others)
expect('set', erasing)
for i = 4, #ARGV do
  expect('hash', KEYS[2 * i - 4])
  expect('stream', KEYS[2 * i - 3])
end

for i = 4, #ARGV do
  local record, events = KEYS[2 * i - 4], KEYS[2 * i - 3]
  if redis.call('ZREM', leftovers, ARGV[i]) == 1 then
    local key, of = unpack(redis.call('HMGET', record, 'key', 'cid'))
    if of and of ~= cid then
      -- It was accepted here and had to fork: it is another conversation's now.
    elseif key and key ~= '' then
      redis.call('UNLINK', events)
      redis.call('HDEL', record, 'request', 'about')
      if redis.call('HGET', record, 'kept') == 'events' then
        redis.call('HSET', record, 'kept', 'body')
      end
      if redis.call('PTTL', record) > receipt_ms then
        redis.call('PEXPIRE', record, digits(receipt_ms))
      end
      if receipts == 'all' then
        redis.call('HSET', record, 'kept', 'none', 'body', '', 'headers', '')
      end
    else
      redis.call('UNLINK', record, events)
    end
  end
end
local left = redis.call('ZCARD', leftovers)
if left == 0 and redis.call('EXISTS', others) == 0 then
  redis.call('SREM', erasing, cid)
end
return {'erased', now, left}
