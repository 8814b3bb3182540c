-- Writes a turn's terminal state, takes its lease and starts the retention of its record and of its key.
-- The caller has checked that the turn has no terminal state yet. A record that says itself how long it is kept goes by that.
local function settle(keys, turn, state, now, record_ms, key_ms)
  record_ms = state ~= 'refused' and tonumber(redis.call('HGET', keys.record, 'keep_ms') or nil) or record_ms
  redis.call('HSET', keys.record, 'state', state, 'ended_ms', digits(now))
  redis.call('PEXPIRE', keys.record, digits(record_ms))
  redis.call('PEXPIRE', keys.events, digits(record_ms))
  redis.call('ZADD', keys.turns, 'XX', digits(now + record_ms), turn)
  redis.call('PUBLISH', keys.events, state)
  redis.call('ZREM', keys.running, turn)
  redis.call('SREM', keys.live, turn)
  redis.call('SREM', keys.cancelling, turn)
  if keys.idempotency and redis.call('HGET', keys.idempotency, 'turn') == turn then
    redis.call('HSET', keys.idempotency, 'state', state)
    if key_ms > 0 then
      redis.call('PEXPIRE', keys.idempotency, digits(key_ms))
    else
      redis.call('PERSIST', keys.idempotency)
    end
  end
end
