-- A deadline further away than it can be was written before the clock stepped back. It becomes the furthest it can be:
-- read so and left as it is, it would stay that far away until the clock is back where it was.
local function shorten(deadlines, now, most_ms)
  for _, turn in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '(' .. digits(now + most_ms), '+inf')) do
    redis.call('ZADD', deadlines, 'XX', digits(now + most_ms), turn)
  end
end
