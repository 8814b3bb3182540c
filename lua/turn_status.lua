#!lua flags=allow-oom
-- Tells the state of a turn. The one script through which a turn's state reaches anybody: a turn whose lease ended is
-- settled here first, so that nobody is told 'interrupted' about a turn that commits afterwards.
--
-- KEYS[1] record        hash: the turn
-- KEYS[2] events        stream: what its client was sent
-- KEYS[3] live          set: turns of its conversation granted and not ended
-- KEYS[4] turns         zset: turn -> ms until which its record is kept
-- KEYS[5] queue         zset: <turn>@<replica> by arrival
-- KEYS[6] running       zset: turn -> lease deadline, of the tenant
-- KEYS[7] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[8] cancelling    set: turns asked to stop
-- KEYS[9] conversation  hash: its conversation
-- KEYS[10] idempotency  hash: the key of the turn; absent without a key
-- ARGV[1] turn          which
-- ARGV[2] lease_ms      length of a lease
-- ARGV[3] vouch_ms      how long a waiter counts after it asked
-- ARGV[4] record_ms     retention of the record from now, should it be settled here
-- ARGV[5] key_ms        the same for the key, 0 for ever
-- ARGV[6] mailboxes     channel prefix of the replicas' mailboxes
-- -> {'unknown', now}                    no record: never granted, or its retention is over
-- -> {'turn', now, left_ms, {field, value...}}   the record; left_ms is the lease of a running turn

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue
--- @include lib/settle
--- @include lib/active

local record, events, live, turns, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local running, waiting, cancelling, conversation, idempotency = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local turn, mailboxes = ARGV[1], ARGV[6]
local lease_ms, vouch_ms = integer(ARGV[2], 'lease_ms'), integer(ARGV[3], 'vouch_ms')
local record_ms, key_ms = integer(ARGV[4], 'record_ms'), integer(ARGV[5], 'key_ms')
local now = store_ms()

for _, key in ipairs({turns, queue, running, waiting}) do expect('zset', key) end
for _, key in ipairs({live, cancelling}) do expect('set', key) end
expect('hash', record)
expect('hash', conversation)
expect('stream', events)
if idempotency then expect('hash', idempotency) end

local state = redis.call('HGET', record, 'state')
if not state then
  redis.call('SREM', cancelling, turn)
  return {'unknown', now}
end
shorten(running, now, lease_ms)
local left_ms = lease_left(running, turn, now)
if state == 'running' and left_ms == 0 then
  local stopped = redis.call('SISMEMBER', cancelling, turn) == 1
  local ended_ms = tonumber(redis.call('ZSCORE', running, turn) or 0)
  settle({record = record, events = events, live = live, turns = turns, running = running, cancelling = cancelling,
    idempotency = idempotency}, turn, stopped and 'cancelled' or 'interrupted', now, record_ms, key_ms)
  active_until(conversation, redis.call('HGET', record, 'session'), ended_ms)
  wake_next(queue, waiting, now, vouch_ms, mailboxes)
end
return {'turn', now, left_ms, redis.call('HGETALL', record)}
