-- Whether a turn may write: it holds a lease nobody took, under this fence, and its session is still the current one.
-- Returns 'held', nil and the length of its log; or 'ended' and the state it ended in; or 'cancelled' (it was asked to
-- stop); or 'lost'.
local function standing(record, conversation, running, cancelling, turn, fence)
  local found = redis.call('HMGET', record, 'state', 'fence', 'session', 'events')
  if found[1] and found[2] ~= fence then
    return 'lost'
  end
  if found[1] and found[1] ~= 'running' then
    return 'ended', found[1]
  end
  if found[3] and redis.call('ZSCORE', running, turn) and redis.call('HGET', conversation, 'session') == found[3] then
    return 'held', nil, integer(found[4] or '0', 'events')
  end
  -- Also without a record: what is left of a deleted session's turns may be erased before they noticed.
  return redis.call('SISMEMBER', cancelling, turn) == 1 and 'cancelled' or 'lost'
end
