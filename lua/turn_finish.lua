#!lua flags=allow-oom
-- Commits a turn in one step: its last events, its answer, the transcript, its key, and the lease.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] live          set: turns of the conversation granted and not ended
-- KEYS[3] turns         zset: turn -> ms until which its record is kept
-- KEYS[4] queue         zset: <turn>@<replica> by arrival
-- KEYS[5] messages      list: the transcript
-- KEYS[6] record        hash: the turn
-- KEYS[7] events        stream: what its client was sent; entry id = sequence number
-- KEYS[8] running       zset: turn -> lease deadline, of the tenant
-- KEYS[9] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[10] cancelling   set: turns asked to stop
-- KEYS[11] sessions     zset: cid by last activity
-- KEYS[12] idempotency  hash: the key of the turn; absent without a key
-- ARGV[1] turn          which
-- ARGV[2] fence         of its grant
-- ARGV[3] cid           its conversation's id
-- ARGV[4] state         completed or failed
-- ARGV[5] status        HTTP status of the answer
-- ARGV[6] headers       opaque bytes
-- ARGV[7] content_type  of the answer
-- ARGV[8] body          opaque bytes, or '' when it is not kept
-- ARGV[9] kept          what a retry can be answered from: events (and body), body, or none
-- ARGV[10] record_ms    retention of the record from now
-- ARGV[11] key_ms       retention of the key from now, 0 for ever
-- ARGV[12] vouch_ms     how long a waiter counts after it asked
-- ARGV[13] mailboxes    channel prefix of the replicas' mailboxes
-- ARGV[14] first        sequence number of the first event here
-- ARGV[15] event_count  how many of the rest are events; the others are messages for the transcript
-- ARGV[16...] rest      events, then messages: opaque bytes
-- -> {'finished', now, state}   committed, now or by an earlier sending of the same call
-- -> {'ended', now, state}      it had ended otherwise; nothing written
-- -> {'cancelled', now}         it was asked to stop and is fenced; nothing written
-- -> {'lost', now}              it is not the caller's any more; nothing written
-- -> {'gap', now, last}         events between last and first are missing; nothing written

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/queue
--- @include lib/standing
--- @include lib/settle

local conversation, live, turns, queue, messages, record = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local events, running, waiting, cancelling, sessions = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local idempotency = KEYS[12]
local turn, fence, state, body, kept = ARGV[1], ARGV[2], ARGV[4], ARGV[8], ARGV[9]
local record_ms, key_ms = integer(ARGV[10], 'record_ms'), integer(ARGV[11], 'key_ms')
local vouch_ms, mailboxes = integer(ARGV[12], 'vouch_ms'), ARGV[13]
local first, event_count = integer(ARGV[14], 'first'), integer(ARGV[15], 'event_count')
local status = integer(ARGV[5], 'status')
if event_count < 0 or event_count > #ARGV - 15 then
  error('event_count is not how many there are: ' .. ARGV[15])
end
local now = store_ms()

-- The conversation and the record are read below, ahead of the first write: a read refuses another type by itself.
local queued, logged = expect('zset', queue), expect('stream', events)
for _, key in ipairs({turns, running, waiting, sessions}) do expect('zset', key) end
for _, key in ipairs({live, cancelling}) do expect('set', key) end
local stored = expect('list', messages)
if idempotency then expect('hash', idempotency) end

local word, ended, last = standing(record, conversation, running, cancelling, turn, fence)
if word == 'ended' and ended == state then
  return {'finished', now, state}
elseif word ~= 'held' then
  return {word, now, ended}
end
local count = integer(redis.call('HGET', conversation, 'turns') or '0', 'turns')
if kept == 'events' and first > last + 1 then
  return {'gap', now, last}
end

if kept == 'events' then
  for i = 16 + last + 1 - first, 15 + event_count do
    last = last + 1
    redis.call('XADD', events, digits(last), 'data', ARGV[i])
  end
else
  if logged > 0 then redis.call('UNLINK', events) end
  last = 0
end
local length = stored
for i = 16 + event_count, #ARGV do
  length = redis.call('RPUSH', messages, ARGV[i])
end
redis.call('HSET', record, 'status', digits(status), 'headers', ARGV[6], 'content_type', ARGV[7], 'body', body, 'kept', kept,
  'events', digits(last), 'length', digits(length))
redis.call('HSET', conversation, 'active_ms', digits(now), 'turns', digits(count + 1))
redis.call('ZADD', sessions, 'XX', digits(now), ARGV[3])
settle({record = record, events = events, live = live, turns = turns, running = running, cancelling = cancelling,
  idempotency = idempotency}, turn, state, now, record_ms, key_ms)
if queued > 0 then wake_next(queue, waiting, now, vouch_ms, mailboxes) end
return {'finished', now, state}
