#!lua flags=allow-oom
-- Ends a turn without an answer: a refusal that proves nothing ran frees the key; a stop or a crash does not. Also takes
-- a waiter out of its queue, and takes back a grant whose caller was cut off before it learned the fence.
--
-- KEYS[1] record        hash: the turn
-- KEYS[2] events        stream: what its client was sent
-- KEYS[3] live          set: turns of its conversation granted and not ended
-- KEYS[4] turns         zset: turn -> ms until which its record is kept
-- KEYS[5] queue         zset: <turn>@<replica> by arrival
-- KEYS[6] running       zset: turn -> lease deadline, of the tenant
-- KEYS[7] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[8] cancelling    set: turns asked to stop
-- KEYS[9] accepted      zset: turn -> ms until which its replica vouches for it
-- KEYS[10] conversation hash: its conversation
-- KEYS[11] idempotency  hash: the key of the turn; absent without a key
-- ARGV[1] turn          which
-- ARGV[2] fence         of its grant; '' from a caller that was cut off before the reply
-- ARGV[3] replica       whose
-- ARGV[4] state         refused (nothing ran, the key is free again), cancelled, interrupted or failed
-- ARGV[5] status        HTTP status of a refusal, 0 for none
-- ARGV[6] headers       opaque bytes
-- ARGV[7] content_type  of the refusal
-- ARGV[8] body          opaque bytes of the refusal
-- ARGV[9] record_ms     retention of the record from now; of a refusal, so that those who joined can read it
-- ARGV[10] key_ms       retention of the key from now, 0 for ever
-- ARGV[11] vouch_ms     how long a waiter counts after it asked
-- ARGV[12] mailboxes    channel prefix of the replicas' mailboxes
-- -> {'abandoned', now}         ended so, or by an earlier sending, or there was nothing to end
-- -> {'ended', now, state}      it had ended otherwise; or it runs, and who says that it is over does not hold it
-- -> {'lost', now}              it is not the caller's any more; nothing written

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/queue
--- @include lib/settle
--- @include lib/active

local record, events, live, turns, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local running, waiting, cancelling, accepted, conversation = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local idempotency = KEYS[11]
local turn, fence, replica, state = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local status = integer(ARGV[5], 'status')
local record_ms, key_ms = integer(ARGV[9], 'record_ms'), integer(ARGV[10], 'key_ms')
local vouch_ms, mailboxes = integer(ARGV[11], 'vouch_ms'), ARGV[12]
local now = store_ms()

for _, key in ipairs({turns, queue, running, waiting, accepted}) do expect('zset', key) end
for _, key in ipairs({live, cancelling}) do expect('set', key) end
expect('hash', record)
expect('hash', conversation)
expect('stream', events)
if idempotency then expect('hash', idempotency) end

local found = redis.call('HMGET', record, 'state', 'fence', 'replica', 'session')
if not found[1] then
  redis.call('SREM', cancelling, turn)
  leave_queue(queue, waiting, {turn .. '@' .. replica})
  wake_next(queue, waiting, now, vouch_ms, mailboxes)
  return {'abandoned', now}
end
if fence ~= '' and fence ~= (found[2] or '') then
  return {'lost', now}
end
if found[1] ~= 'running' and found[1] ~= 'accepted' then
  return found[1] == state and {'abandoned', now} or {'ended', now, found[1]}
end
-- Without its fence a grant can only be taken back: the accepted turn that is given up may have been granted meanwhile.
if fence == '' and state ~= 'refused' and found[1] == 'running' then
  return {'ended', now, found[1]}
end
local stopped = redis.call('SISMEMBER', cancelling, turn) == 1
if found[1] == 'running' and not redis.call('ZSCORE', running, turn) and not stopped then
  return {'lost', now}
end
if found[1] == 'accepted' then
  leave_queue(queue, waiting, {turn .. '@' .. (found[3] or '')})
  redis.call('ZREM', accepted, turn)
  redis.call('HDEL', record, 'request')
end
local asked = state
if stopped and state ~= 'refused' then
  state = 'cancelled'
end
redis.call('HSET', record, 'status', digits(status), 'headers', ARGV[6], 'content_type', ARGV[7], 'body', ARGV[8])
settle({record = record, events = events, live = live, turns = turns, running = running, cancelling = cancelling,
  idempotency = idempotency}, turn, state, now, record_ms, key_ms)
active_until(conversation, found[4], now)
if state == 'refused' and idempotency and redis.call('HGET', idempotency, 'turn') == turn then
  redis.call('UNLINK', idempotency)
end
wake_next(queue, waiting, now, vouch_ms, mailboxes)
return state == asked and {'abandoned', now} or {'ended', now, state}
