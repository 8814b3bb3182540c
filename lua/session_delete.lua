#!lua flags=allow-oom
-- Deletes a session: retires it for good in one step, and has what is left of it erased.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] live          set: turns of it granted and not ended
-- KEYS[3] turns         zset: turn -> ms until which its record is kept
-- KEYS[4] leftovers     zset: the same, of retired sessions, until erased; the one that fits `receipts`
-- KEYS[5] queue         zset: <turn>@<replica> by arrival
-- KEYS[6] messages      list: its transcript
-- KEYS[7] running       zset: turn -> lease deadline, of the tenant
-- KEYS[8] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[9] cancelling    set: turns asked to stop
-- KEYS[10] sessions     zset: cid by last activity
-- KEYS[11] tombstones   zset: cid by time of retirement
-- KEYS[12] retired      set: digests of retired client-chosen ids
-- KEYS[13] erasing      set: cids with leftovers
-- KEYS[14] record       hash: what a host recorded of the id
-- ARGV[1] session       its id
-- ARGV[2] cid           its conversation's id
-- ARGV[3] generation    its generation
-- ARGV[4] token         the caller's, made before the call: repeated, it is answered as the first time
-- ARGV[5] force         1 to end live turns and waiters, 0 to be refused while there are any
-- ARGV[6] nonce         for the next generation
-- ARGV[7] retired_id    digest of a client-chosen id, or ''
-- ARGV[8] lease_ms      length of a lease
-- ARGV[9] vouch_ms      how long a waiter counts after it asked
-- ARGV[10] mailboxes    channel prefix of the replicas' mailboxes
-- -> {'deleted', now, {turn...}}         retired; these turns were live and are asked to stop
-- -> {'not_found', now}                  retired before, or never there
-- -> {'busy', now, holder, left_ms}      a turn is live, or one waits

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue
--- @include lib/retire

local at = {conversation = KEYS[1], live = KEYS[2], turns = KEYS[3], leftovers = KEYS[4], queue = KEYS[5],
  messages = KEYS[6], running = KEYS[7], waiting = KEYS[8], cancelling = KEYS[9], sessions = KEYS[10],
  tombstones = KEYS[11], erasing = KEYS[13]}
local retired, record = KEYS[12], KEYS[14]
local session, cid, token, force, retired_id = ARGV[1], ARGV[2], ARGV[4], ARGV[5] == '1', ARGV[7]
local generation = integer(ARGV[3], 'generation')
local lease_ms, vouch_ms = integer(ARGV[8], 'lease_ms'), integer(ARGV[9], 'vouch_ms')
local now = store_ms()

for _, key in ipairs({at.conversation, record}) do expect('hash', key) end
for _, key in ipairs({at.turns, at.leftovers, at.queue, at.running, at.waiting, at.sessions, at.tombstones}) do
  expect('zset', key)
end
for _, key in ipairs({at.live, at.cancelling, at.erasing, retired}) do expect('set', key) end
expect('list', at.messages)

local found = redis.call('HMGET', at.conversation, 'session', 'ended_token', 'holder', 'ended_turns')
if found[2] == token then
  return {'deleted', now, stopped_turns(found[4])}
elseif found[1] ~= session and (found[1] == '' or redis.call('EXISTS', record) == 0) then
  return {'not_found', now}
end
local all = {}
all.alive, all.dead = split_live(at.live, at.running, now, lease_ms)
all.waiters, all.gone = split_waiters(at.queue, at.waiting, now, vouch_ms)
if not force and (all.alive[1] or all.waiters[1]) then
  local left_ms = all.alive[1] and lease_left(at.running, all.alive[1], now) or 0
  return {'busy', now, found[3] or '', left_ms}
end

retire(at, all, {cid = cid, generation = generation, nonce = ARGV[6], reason = 'deleted', token = token,
  mailboxes = ARGV[10]}, now)
if retired_id ~= '' then
  redis.call('SADD', retired, retired_id)
  redis.call('UNLINK', record)
end
return {'deleted', now, all.alive}
