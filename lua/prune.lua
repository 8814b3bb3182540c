#!lua flags=allow-oom
-- Drops conversations that were idle, or retired, for longer than the horizon. A declared one that had a boundary, or has
-- one by this, shrinks to its counter instead. Nothing of a conversation with a live turn or waiter is touched; records of
-- turns, and so receipts, end by their own retention.
--
-- KEYS[1] sessions      zset: cid by last activity
-- KEYS[2] tombstones    zset: cid by time of retirement
-- KEYS[3] running       zset: turn -> lease deadline, of the tenant
-- KEYS[4] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[5...] conversations   for each cid its conversation (hash), live (set), turns (zset), queue (zset), messages (list)
-- ARGV[1] horizon_ms    what was last active, or retired, at least this long ago goes
-- ARGV[2] lease_ms      length of a lease
-- ARGV[3] vouch_ms      how long a waiter counts after it asked
-- ARGV[4] nonce         for the next generation of declared conversations
-- ARGV[5...] cids       the conversations, in the order of the keys
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
  integer(redis.call('HGET', KEYS[i], 'generation') or '1', 'generation')
end

-- What is left of a declared conversation: its counter, so that no generation is ever issued again.
local function shrink(conversation)
  local kept = redis.call('HMGET', conversation, 'source', 'generation', 'nonce', 'fence', 'ended_by')
  redis.call('UNLINK', conversation)
  redis.call('HSET', conversation, 'kind', 'd', 'source', kept[1] or '', 'session', '', 'generation', kept[2], 'nonce', kept[3] or ARGV[4],
    'fence', kept[4] or '0', 'ended_by', kept[5] or '')
end

local count = 0
for i = 5, #ARGV do
  local cid, at = ARGV[i], 5 + 5 * (i - 5)
  local conversation, live, turns, queue, messages = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4]
  local since = tonumber(redis.call('ZSCORE', sessions, cid) or redis.call('ZSCORE', tombstones, cid))
  local found = redis.call('HMGET', conversation, 'session', 'generation')
  local session, generation = found[1], integer(found[2] or '1', 'generation')
  if not since then
    -- Dropped or shrunk before, by an earlier sending: counted again.
    count = count + ((not session or session == '') and 1 or 0)
  elseif since <= now - horizon_ms then
    local alive, dead = split_live(live, running, now, lease_ms)
    local waiters, gone = split_waiters(queue, waiting, now, vouch_ms)
    if not alive[1] and not waiters[1] then
      -- Their leases go too: the same id may be opened again, and they must not be its turns.
      for _, turn in ipairs(dead) do redis.call('ZREM', running, turn) end
      leave_queue(queue, waiting, gone)
      redis.call('UNLINK', live, turns, queue, messages)
      redis.call('ZREM', sessions, cid)
      redis.call('ZREM', tombstones, cid)
      local declared = string.sub(cid, 1, 1) == 'd'
      if declared and session and session ~= '' then
        redis.call('HSET', conversation, 'generation', digits(generation + 1), 'nonce', ARGV[4], 'ended_by', 'idle')
        shrink(conversation)
      elseif declared and generation > 1 then
        shrink(conversation)
      else
        redis.call('UNLINK', conversation)
      end
      count = count + 1
    end
  end
end
return {'pruned', now, count}
