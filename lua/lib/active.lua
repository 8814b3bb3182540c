-- Notes that a turn of this session was at work until then: rest is counted from there. A session that is not current any
-- more is left alone.
local function active_until(conversation, session, until_ms)
  local found = redis.call('HMGET', conversation, 'session', 'active_ms')
  if session and found[1] == session and until_ms > (tonumber(found[2] or '') or 0) then
    redis.call('HSET', conversation, 'active_ms', digits(until_ms))
  end
end
