-- The id of a generation's session.
local function session_name(cid, generation, nonce)
  return 'ses_' .. cid .. '_' .. digits(generation) .. '_' .. nonce
end

-- Whether a request may name this session id: it is current, or the one that the last boundary made room for, or one
-- that a client chose and that was never retired. `pending` is false for a conversation that does not exist.
local function may_name(cid, named, session, pending, retired, retired_id)
  if named == '' then
    return true
  elseif string.sub(cid, 1, 1) == 'x' then
    return session ~= '' and redis.call('SISMEMBER', retired, retired_id) == 0
  elseif session == '' then
    return named == pending
  end
  return named == session
end

-- Who keeps the history of a session that is opened. Named by the id that a boundary announced, an opening's conversation goes
-- on as it was: its turns may run side by side, and would interleave in a transcript.
local function history_of(cid, named, before, wanted)
  return string.sub(cid, 1, 1) == 'i' and named ~= '' and before or wanted
end

-- Writes a session down as current.
local function open_session(at, of, now)
  redis.call('HSET', at.conversation, 'kind', string.sub(of.cid, 1, 1), 'history', of.history, 'source', of.source,
    'session', of.session, 'generation', digits(of.generation), 'nonce', of.nonce, 'created_ms', digits(now),
    'active_ms', digits(now), 'turns', '0')
  redis.call('ZREM', at.tombstones, of.cid)
  redis.call('ZADD', at.sessions, digits(now), of.cid)
end
