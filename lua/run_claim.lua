#!lua flags=allow-oom
-- Takes over accepted work whose replica died before it started: once, by whoever is first.
--
-- KEYS[1] record        hash: the turn
-- KEYS[2] accepted      zset: turn -> ms until which its replica vouches for it
-- ARGV[1] turn          which
-- ARGV[2] replica       who asks
-- ARGV[3] vouch_ms      how long the work counts as somebody's after that one asked
-- -> {'claimed', now, {field, value...}}   it is the caller's now; the record
-- -> {'taken', now}                        its replica still vouches for it, or somebody else was first
-- -> {'gone', now}                         it has started, ended, or left nothing

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline

local record, accepted, turn, replica = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local vouch_ms = integer(ARGV[3], 'vouch_ms')
local now = store_ms()

expect('zset', accepted)
local found = redis.call('HMGET', record, 'state', 'replica')
if found[1] ~= 'accepted' then
  redis.call('ZREM', accepted, turn)
  return {'gone', now}
end
shorten(accepted, now, vouch_ms)
local until_ms = tonumber(redis.call('ZSCORE', accepted, turn) or 0)
if until_ms > now and found[2] ~= replica then
  return {'taken', now}
end
redis.call('HSET', record, 'replica', replica)
redis.call('ZADD', accepted, digits(now + vouch_ms), turn)
return {'claimed', now, redis.call('HGETALL', record)}
