#!lua
-- Opens a session without a turn: under the id a client chose, as a new one, or as a declared conversation's.
--
-- KEYS[1] conversation  hash: its conversation
-- KEYS[2] sessions      zset: cid by last activity
-- KEYS[3] tombstones    zset: cid by time of retirement
-- KEYS[4] retired       set: digests of retired client-chosen ids
-- ARGV[1] cid           the conversation's id; its first letter is the kind
-- ARGV[2] named         the session id asked for, or ''
-- ARGV[3] nonce         for the first generation, should there be none
-- ARGV[4] history       store or client, for a conversation that is new
-- ARGV[5] source        for a conversation that is new
-- ARGV[6] retired_id    digest of the client-chosen id, or ''
-- ARGV[7] token         the caller's, made before the call: repeated, it is answered as the first time
-- -> {'opened', now, session}    it is new
-- -> {'current', now, session}   it was open already
-- -> {'not_found', now}          the id is retired, or of our pattern and not current

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/open

local conversation, sessions, tombstones, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local cid, named, token = ARGV[1], ARGV[2], ARGV[7]
local now = store_ms()

expect('hash', conversation)
expect('zset', sessions)
expect('zset', tombstones)
expect('set', retired)

local found = redis.call('HMGET', conversation, 'session', 'generation', 'nonce', 'opened_token', 'source')
local session, generation, nonce = found[1], integer(found[2] or '1', 'generation'), found[3] or ARGV[3]
local pending = session_name(cid, generation, nonce)
if not may_name(cid, named, session, found[3] and pending, retired, ARGV[6]) then
  return {'not_found', now}
elseif session and session ~= '' then
  return {found[4] == token and 'opened' or 'current', now, session}
end
session = string.sub(cid, 1, 1) == 'x' and named or pending
open_session({conversation = conversation, sessions = sessions, tombstones = tombstones},
  {cid = cid, session = session, generation = generation, nonce = nonce, history = ARGV[4], source = found[5] or ARGV[5]}, now)
redis.call('HSET', conversation, 'opened_token', token)
return {'opened', now, session}
