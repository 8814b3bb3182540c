#!lua flags=allow-oom
-- Retires a session in one step: the generation moves, its id stops resolving, its turns are fenced, its waiters sent
-- home, its transcript gone. What is bulky beyond that is put aside for session_erase.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] live          set: turns of it granted and not ended
-- KEYS[3] turns         zset: turn -> ms until which its record is kept
-- KEYS[4] leftovers     zset: the same, of the retired session, until erased
-- KEYS[5] queue         zset: <turn>@<replica> by arrival
-- KEYS[6] messages      list: its transcript
-- KEYS[7] running       zset: turn -> lease deadline, of the tenant
-- KEYS[8] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[9] cancelling    set: turns asked to stop
-- KEYS[10] sessions     zset: cid by last activity
-- KEYS[11] tombstones   zset: cid by time of retirement
-- KEYS[12] retired      set: digests of retired client-chosen ids
-- KEYS[13] erasing      hash: <cid>:<generation> -> keep or all
-- ARGV[1] session       its id
-- ARGV[2] cid           its conversation's id
-- ARGV[3] generation    its generation
-- ARGV[4] token         the caller's, made before the call: repeated, it is answered as the first time
-- ARGV[5] force         1 to end live turns and waiters, 0 to be refused while there are any
-- ARGV[6] receipts      keep or all: whether answers that keyed clients received are erased too
-- ARGV[7] nonce         for the next generation
-- ARGV[8] retired_id    digest of a client-chosen id, or ''
-- ARGV[9] lease_ms      length of a lease
-- ARGV[10] vouch_ms     how long a waiter counts after it asked
-- ARGV[11] mailboxes    channel prefix of the replicas' mailboxes
-- -> {'deleted', now, {turn...}}         retired; these turns were live and are asked to stop
-- -> {'not_found', now}                  retired before, or never there
-- -> {'busy', now, holder, left_ms}      a turn is live, or one waits

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue

local conversation, live, turns, leftovers, queue, messages = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local running, waiting, cancelling, sessions = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local tombstones, retired, erasing = KEYS[11], KEYS[12], KEYS[13]
local session, cid, token, force, retired_id, mailboxes = ARGV[1], ARGV[2], ARGV[4], ARGV[5] == '1', ARGV[8], ARGV[11]
local generation = integer(ARGV[3], 'generation')
local lease_ms, vouch_ms = integer(ARGV[9], 'lease_ms'), integer(ARGV[10], 'vouch_ms')
local now = store_ms()

for _, key in ipairs({conversation, erasing}) do expect('hash', key) end
for _, key in ipairs({turns, leftovers, queue, running, waiting, sessions, tombstones}) do expect('zset', key) end
for _, key in ipairs({live, cancelling, retired}) do expect('set', key) end
expect('list', messages)

local found = redis.call('HMGET', conversation, 'session', 'ended_token', 'holder')
if found[2] == token then
  local stopping = {}
  for _, turn in ipairs(redis.call('ZRANGE', leftovers, 0, -1)) do
    if redis.call('SISMEMBER', cancelling, turn) == 1 then stopping[#stopping + 1] = turn end
  end
  return {'deleted', now, stopping}
elseif found[1] ~= session then
  return {'not_found', now}
end
local alive, dead = split_live(live, running, now, lease_ms)
local waiters, gone = split_waiters(queue, waiting, now, vouch_ms)
if not force and (alive[1] or waiters[1]) then
  return {'busy', now, found[3] or '', alive[1] and lease_left(running, alive[1], now) or 0}
end

redis.call('HSET', conversation, 'session', '', 'generation', digits(generation + 1), 'nonce', ARGV[7],
  'ended_by', 'deleted', 'ended_token', token)
if retired_id ~= '' then
  redis.call('SADD', retired, retired_id)
end
redis.call('ZREM', sessions, cid)
redis.call('ZADD', tombstones, digits(now), cid)
for _, turn in ipairs(alive) do
  redis.call('ZREM', running, turn)
  redis.call('SADD', cancelling, turn)
end
for _, turn in ipairs(dead) do
  redis.call('ZREM', running, turn)
end
leave_queue(queue, waiting, gone)
for _, member in ipairs(waiters) do
  leave_queue(queue, waiting, {member})
  wake(mailboxes, member)
end
redis.call('UNLINK', live, messages)
if redis.call('EXISTS', turns) == 1 then
  redis.call('RENAME', turns, leftovers)
  local field = cid .. ':' .. digits(generation)
  if redis.call('HGET', erasing, field) ~= 'all' then
    redis.call('HSET', erasing, field, ARGV[6])
  end
end
return {'deleted', now, alive}
