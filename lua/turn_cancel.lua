#!lua flags=allow-oom
-- Asks the live turns of a session to stop. Durable: each is told at its next renewal, whoever holds it; should its replica
-- be dead, it reads cancelled. Whoever asks may send a message besides, for speed.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] live          set: turns of it granted and not ended
-- KEYS[3] running       zset: turn -> lease deadline, of the tenant
-- KEYS[4] cancelling    set: turns asked to stop
-- ARGV[1] session       its id
-- ARGV[2] turn          the one turn that is meant, or '' for all of them
-- ARGV[3] lease_ms      length of a lease
-- -> {'cancelling', now, {turn...}}   these are live and asked to stop
-- -> {'not_found', now}               the session is not current

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease

local conversation, live, running, cancelling = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local session, turn, lease_ms = ARGV[1], ARGV[2], integer(ARGV[3], 'lease_ms')
local now = store_ms()

expect('set', live)
expect('zset', running)
expect('set', cancelling)

if redis.call('HGET', conversation, 'session') ~= session then
  return {'not_found', now}
end
local asked = {}
for _, one in ipairs(split_live(live, running, now, lease_ms)) do
  if turn == '' or turn == one then
    redis.call('SADD', cancelling, one)
    asked[#asked + 1] = one
  end
end
return {'cancelling', now, asked}
