#!lua flags=allow-oom
-- Renews the leases of one replica's turns in one tenant. A turn gets one grant in its life, so its token stands for its
-- fence, and no key of a conversation is needed. Update-only: a turn that is not running stays so.
--
-- KEYS[1] running       zset: turn -> lease deadline, of the tenant
-- KEYS[2] cancelling    set: turns asked to stop
-- ARGV[1] lease_ms      length of a lease
-- ARGV[2...] turns      the turns, at most 200
-- -> {'renewed', now, {lost...}, {cancelled...}}   those not renewed, and those asked to stop

--- @include lib/clock
--- @include lib/expect
--- @include lib/number

local running, cancelling = KEYS[1], KEYS[2]
local lease_ms = integer(ARGV[1], 'lease_ms')
local now = store_ms()

expect('zset', running)
expect('set', cancelling)

local lost, cancelled = {}, {}
for i = 2, #ARGV do
  local turn = ARGV[i]
  local stopped = redis.call('SISMEMBER', cancelling, turn) == 1
  if stopped then
    cancelled[#cancelled + 1] = turn
  end
  if redis.call('ZSCORE', running, turn) then
    redis.call('ZADD', running, 'XX', digits(now + lease_ms), turn)
  elseif not stopped then
    lost[#lost + 1] = turn
  end
end
return {'renewed', now, lost, cancelled}
