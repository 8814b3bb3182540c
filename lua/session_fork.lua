#!lua
-- Opens a new session that starts with a copy of another's transcript. The two go their own ways from here on.
--
-- KEYS[1] origin            hash: the conversation of the session to fork
-- KEYS[2] origin_messages   list: its transcript
-- KEYS[3] conversation      hash: the new conversation
-- KEYS[4] messages          list: its transcript
-- KEYS[5] sessions          zset: cid by last activity
-- KEYS[6] tombstones        zset: cid by time of retirement
-- ARGV[1] named             the session id to fork
-- ARGV[2] cid               the new conversation's id, of the kind m; repeated, it is answered as the first time
-- ARGV[3] nonce             for its first generation
-- ARGV[4] length            how many messages to copy, or '' for all
-- -> {'forked', now, session, messages}    the new session's id, and how many messages it starts with
-- -> {'not_found', now}                    the session to fork is not current

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/open

local origin, origin_messages, conversation, messages = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local named, cid, nonce = ARGV[1], ARGV[2], ARGV[3]
local length = ARGV[4] ~= '' and integer(ARGV[4], 'length')
local now = store_ms()

expect('hash', origin)
expect('hash', conversation)
expect('list', origin_messages)
expect('list', messages)
expect('zset', KEYS[5])
expect('zset', KEYS[6])

local made = redis.call('HMGET', conversation, 'session', 'forked')
if made[1] then
  return {'forked', now, made[1], integer(made[2] or '0', 'forked')}
end
local found = redis.call('HMGET', origin, 'session', 'history', 'source')
if named == '' or found[1] ~= named then
  return {'not_found', now}
end
local count = redis.call('LLEN', origin_messages)
if length then
  count = math.min(count, length)
end
local session = session_name(cid, 1, nonce)
open_session({conversation = conversation, sessions = KEYS[5], tombstones = KEYS[6]},
  {cid = cid, session = session, generation = 1, nonce = nonce, history = found[2], source = found[3]}, now)
if count > 0 then
  redis.call('COPY', origin_messages, messages)
  redis.call('LTRIM', messages, 0, count - 1)
end
redis.call('HSET', conversation, 'parent', named, 'forked', digits(count))
return {'forked', now, session, count}
