#!lua
-- Appends to a turn's event log, and renews its lease. A repeated append adds only what is not there yet.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] record        hash: the turn
-- KEYS[3] events        stream: what its client was sent; entry id = sequence number
-- KEYS[4] running       zset: turn -> lease deadline, of the tenant
-- KEYS[5] cancelling    set: turns asked to stop
-- ARGV[1] turn          whose
-- ARGV[2] fence         of its grant
-- ARGV[3] lease_ms      length of a lease
-- ARGV[4] record_ms     how long the log is kept should nobody end the turn
-- ARGV[5] first         sequence number of the first event here; the first of a turn is 1
-- ARGV[6...] events     opaque bytes, one an event
-- -> {'appended', now, last}    sequence number of the last event in the log
-- -> {'ended', now, state}      the turn has ended
-- -> {'cancelled', now}         the turn was asked to stop and is fenced
-- -> {'lost', now}              the turn is not the caller's any more
-- -> {'gap', now, last}         events between last and first are missing; nothing appended

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/standing

local conversation, record, events, running, cancelling = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turn, fence = ARGV[1], ARGV[2]
local lease_ms, record_ms = integer(ARGV[3], 'lease_ms'), integer(ARGV[4], 'record_ms')
local first = integer(ARGV[5], 'first')
local now = store_ms()

-- The conversation and the record are read below, ahead of the first write: a read refuses another type by itself.
expect('stream', events)
expect('zset', running)
expect('set', cancelling)

local word, state, last = standing(record, conversation, running, cancelling, turn, fence)
if word ~= 'held' then
  return {word, now, state}
end
if first > last + 1 then
  return {'gap', now, last}
end
for i = 6 + last + 1 - first, #ARGV do
  last = last + 1
  redis.call('XADD', events, digits(last), 'data', ARGV[i])
end
redis.call('HSET', record, 'events', digits(last))
redis.call('PUBLISH', events, 'more')
redis.call('PEXPIRE', events, digits(record_ms))
redis.call('ZADD', running, 'XX', digits(now + lease_ms), turn)
return {'appended', now, last}
