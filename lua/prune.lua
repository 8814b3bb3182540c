#!lua flags=allow-oom
-- Drops conversations that were idle, or retired, for longer than the horizon. Nothing of a conversation with a live
-- turn or waiter is touched; records of turns, and so receipts, end by their own retention.
--
-- KEYS[1] sessions      zset: cid by last activity
-- KEYS[2] tombstones    zset: cid by time of retirement
-- KEYS[3] running       zset: turn -> lease deadline, of the tenant
-- KEYS[4] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[5...] conversations   for each cid its conversation (hash), live (set), turns (zset), queue (zset), messages (list)
-- ARGV[1] horizon_ms    what was last active, or retired, at least this long ago goes
-- ARGV[2] lease_ms      length of a lease
-- ARGV[3] vouch_ms      how long a waiter counts after it asked
-- ARGV[4...] cids       the conversations, in the order of the keys
-- -> {'pruned', now, count}     how many of them are gone, by this or an earlier sending

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue

local sessions, tombstones, running, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local horizon_ms, lease_ms, vouch_ms = integer(ARGV[1], 'horizon_ms'), integer(ARGV[2], 'lease_ms'), integer(ARGV[3], 'vouch_ms')
local now = store_ms()

for _, key in ipairs({sessions, tombstones, running, waiting}) do expect('zset', key) end
for i = 5, #KEYS, 5 do
  expect('hash', KEYS[i])
  expect('set', KEYS[i + 1])
  expect('zset', KEYS[i + 2])
  expect('zset', KEYS[i + 3])
  expect('list', KEYS[i + 4])
end

local count = 0
for i = 4, #ARGV do
  local cid, at = ARGV[i], 5 + 5 * (i - 4)
  local conversation, live, turns, queue, messages = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4]
  local since = tonumber(redis.call('ZSCORE', sessions, cid) or redis.call('ZSCORE', tombstones, cid))
  if not since then
    count = count + 1 - redis.call('EXISTS', conversation)
  elseif since <= now - horizon_ms then
    local alive, dead = split_live(live, running, now, lease_ms)
    local waiters, gone = split_waiters(queue, waiting, now, vouch_ms)
    if not alive[1] and not waiters[1] then
      -- Their leases go too: the same id may be opened again, and they must not be its turns.
      for _, turn in ipairs(dead) do redis.call('ZREM', running, turn) end
      leave_queue(queue, waiting, gone)
      redis.call('UNLINK', conversation, live, turns, queue, messages)
      redis.call('ZREM', sessions, cid)
      redis.call('ZREM', tombstones, cid)
      count = count + 1
    end
  end
end
return {'pruned', now, count}
