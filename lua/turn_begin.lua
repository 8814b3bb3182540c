#!lua
-- Admits one turn: decides which session it belongs to, whether it may run, and what its key already answered.
--
-- KEYS[1] conversation  hash: the conversation the request belongs to
-- KEYS[2] live          set: its turns granted and not ended
-- KEYS[3] turns         zset: turn -> ms until which its record is kept
-- KEYS[4] queue         zset: <turn>@<replica> by arrival
-- KEYS[5] messages      list: its transcript
-- KEYS[6] record        hash: the turn being admitted
-- KEYS[7] running       zset: turn -> lease deadline, of the tenant
-- KEYS[8] waiting       zset: turn -> ms until which its replica vouches for it
-- KEYS[9] sessions      zset: cid by last activity
-- KEYS[10] tombstones   zset: cid by time of retirement
-- KEYS[11] retired      set: digests of retired client-chosen ids
-- KEYS[12] leftovers    zset: turns of retired sessions, until erased; receipts are kept
-- KEYS[13] erasing      set: cids with leftovers
-- KEYS[14] cancelling   set: turns asked to stop
-- KEYS[15] accepted     zset: turn -> ms until which its replica vouches for it
-- KEYS[16] idempotency  hash: what the request's key names; absent without a key
-- ARGV[1] turn          the caller's token, made before the call
-- ARGV[2] replica       who asks
-- ARGV[3] not_after_ms  when the caller's patience ends
-- ARGV[4] cid           conversation id; its first letter is the kind
-- ARGV[5] named         the session id the request names, or ''
-- ARGV[6] expected      the session this waiter saw first, or ''
-- ARGV[7] nonce         for the first generation, should there be none
-- ARGV[8] history       store or client, for a conversation that is new
-- ARGV[9] source        for a conversation that is new
-- ARGV[10] exclusive    1 when its turns take turns, 0 when they run side by side
-- ARGV[11] policy       wait, reject, or interrupt: ask the running turn to stop and be first in line
-- ARGV[12] queue_limit  waiters a conversation may have
-- ARGV[13] max_running  running turns the tenant may have, 0 for any number
-- ARGV[14] lease_ms     length of a lease
-- ARGV[15] vouch_ms     how long a waiter counts after it asked
-- ARGV[16] record_ms    how long the turn's record is kept should nobody end it
-- ARGV[17] key_ms       the same for the key, 0 for ever
-- ARGV[18] route        what was asked for
-- ARGV[19] fingerprint  digest of the request, compared for one key
-- ARGV[20] digest       the key's digest, or ''
-- ARGV[21] retired_id   digest of the client-chosen id, or ''
-- ARGV[22] instead_of   the interrupted turn that this one runs again, or ''
-- ARGV[23] mailboxes    channel prefix of the replicas' mailboxes
-- ARGV[24] idle_ms      how long a declared conversation may rest before its next generation begins, 0 for ever
-- ARGV[25] daily        moments in ms, ascending, at which one ends a generation, as '<ms>,<ms>...' or ''
-- ARGV[26] length       messages the transcript must have for the turn to follow on them, or ''
-- ARGV[27] request      opaque bytes: accept the turn with this request, to be granted later; '' to ask for the grant
-- ARGV[28] keep_ms      how long the record is kept once the turn has ended, '' for as long as such turns are
-- ARGV[29] about        opaque bytes kept with the record, or ''
-- -> {'late', now}                                      the caller has given up; nothing done
-- -> {'granted', now, session, generation, nonce, fence, history, {message...}}
-- -> {'accepted', now, session, generation, nonce}      written down; ask again for the grant
-- -> {'branch', now, session}                           the transcript is longer: a fork of it has to be made
-- -> {'ended', now, state}                              this very turn has ended already
-- -> {'conflict', now}                                  the key names another request
-- -> {'seen', now, turn, cid, session, state}           the key names this request's earlier turn
-- -> {'not_found', now}                                 the named session is retired or was never ours
-- -> {'moved', now}                                     the session ended while the caller waited
-- -> {'busy', now, holder, left_ms}                     another turn holds the conversation
-- -> {'queued', now, place, session, holder, left_ms}   waiting, at this place; ask again
-- -> {'full', now}                                      too many wait already
-- -> {'limited', now}                                   the tenant runs as many turns as it may

--- @include lib/clock
--- @include lib/expect
--- @include lib/number
--- @include lib/deadline
--- @include lib/lease
--- @include lib/queue
--- @include lib/retire
--- @include lib/open
--- @include lib/due

local conversation, live, turns, queue, messages, record = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local running, waiting, sessions, tombstones, retired = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local leftovers, erasing, cancelling, accepted, idempotency = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local turn, replica, cid, named, expected = ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6]
local not_after_ms = integer(ARGV[3], 'not_after_ms')
local exclusive, policy = ARGV[10] == '1', ARGV[11]
local queue_limit, max_running = integer(ARGV[12], 'queue_limit'), integer(ARGV[13], 'max_running')
local lease_ms, vouch_ms = integer(ARGV[14], 'lease_ms'), integer(ARGV[15], 'vouch_ms')
local record_ms, key_ms = integer(ARGV[16], 'record_ms'), integer(ARGV[17], 'key_ms')
local fingerprint, instead_of, mailboxes = ARGV[19], ARGV[22], ARGV[23]
local me = turn .. '@' .. replica
local now = store_ms()

-- 0 Too late for its caller.
if now > not_after_ms then
  return {'late', now}
end

-- The hashes are read below, ahead of the first write, and a read refuses another type by itself.
local queued = expect('zset', queue)
for _, key in ipairs({turns, running, waiting, sessions, tombstones, leftovers, accepted}) do expect('zset', key) end
for _, key in ipairs({live, retired, erasing, cancelling}) do expect('set', key) end
expect('list', messages)

local found = redis.call('HMGET', conversation, 'session', 'generation', 'nonce', 'fence', 'history', 'holder', 'arrivals',
  'active_ms', 'source')
local session, nonce, history, holder = found[1], found[3] or ARGV[7], found[5] or ARGV[8], found[6] or ''
local generation = integer(found[2] or '1', 'generation')
local fence = integer(found[4] or '0', 'fence')
local idle_ms, request = integer(ARGV[24], 'idle_ms'), ARGV[27]
local length = ARGV[26] ~= '' and integer(ARGV[26], 'length')
if ARGV[28] ~= '' then integer(ARGV[28], 'keep_ms') end
integer(found[7] or '0', 'arrivals')

local function granted()
  local transcript = history == 'store' and redis.call('LRANGE', messages, 0, -1) or {}
  return {'granted', now, session, digits(generation), nonce, digits(fence), history, transcript}
end

-- A waiter that is refused leaves; the one behind it may be the next to run.
local function refused(...)
  if redis.call('ZREM', queue, me) == 1 then
    redis.call('ZREM', waiting, turn)
    wake_next(queue, waiting, now, vouch_ms, mailboxes)
  end
  return {...}
end

-- 1 This very turn is known: its reply was lost, and it is told again; or it was accepted, and goes on.
local known = redis.call('HMGET', record, 'state', 'session', 'fence', 'replica')
local resumes = known[1] == 'accepted' and known[4] == replica
if resumes and request ~= '' then
  return {'accepted', now, known[2], digits(generation), nonce}
elseif known[1] and not resumes then
  if known[1] ~= 'running' or known[2] ~= session or not redis.call('ZSCORE', running, turn) then
    return {'ended', now, known[1]}
  end
  fence = integer(known[3], 'fence')
  return granted()
end

-- 2 Its key was seen.
local seen = idempotency and redis.call('HMGET', idempotency, 'turn', 'fingerprint', 'cid', 'session', 'state') or {}
if seen[1] and seen[1] ~= turn then
  if seen[2] ~= fingerprint then
    return refused('conflict', now)
  end
  if seen[1] ~= instead_of or redis.call('ZSCORE', running, instead_of) then
    return refused('seen', now, seen[1], seen[3], seen[4], seen[5])
  end
end

local all = {alive = {}, dead = {}, waiters = {}, gone = {}}
if exclusive then
  all.alive, all.dead = split_live(live, running, now, lease_ms)
  all.waiters, all.gone = split_waiters(queue, waiting, now, vouch_ms)
end

-- 3 A declared conversation that nobody is using, past its idle or daily boundary: the boundary, now. For what was accepted
-- it was judged then.
local resting = string.sub(cid, 1, 1) == 'd' and session and session ~= '' and not all.alive[1] and not all.waiters[1]
  and not resumes
local reason = resting and boundary_due(rests_since(integer(found[8] or '0', 'active_ms'), all.dead, running), now, idle_ms, ARGV[25])
if reason then
  retire({conversation = conversation, live = live, turns = turns, leftovers = leftovers, queue = queue, messages = messages,
    running = running, waiting = waiting, sessions = sessions, tombstones = tombstones, erasing = erasing}, all,
    {cid = cid, generation = generation, nonce = ARGV[7], reason = reason, token = turn, mailboxes = mailboxes}, now)
  session, generation, nonce, history = '', generation + 1, ARGV[7], ARGV[8]
  all.dead, all.gone = {}, {}
end

-- 4 The request names a session, or waited for one: that one, or none.
local pending = session_name(cid, generation, nonce)
if not may_name(cid, named, session, found[3] and pending, retired, ARGV[21]) then
  return refused('not_found', now)
elseif named == '' and expected ~= '' and session ~= expected then
  return refused('moved', now)
end

if length and redis.call('LLEN', messages) ~= length then
  return refused('branch', now, session)
end

-- 5 No session yet: its name.
local opens = not session or session == ''
if opens then
  session, history = string.sub(cid, 1, 1) == 'x' and named or pending, history_of(cid, named, found[5], ARGV[8])
end

-- 6 Somebody live is running or in front.
local alive, dead, waiters, gone, place = all.alive, all.dead, all.waiters, all.gone, 1
if request ~= '' and alive[1] and #waiters >= queue_limit then
  return {'full', now}
end
if exclusive and request == '' then
  while waiters[place] and waiters[place] ~= me do place = place + 1 end
  local interrupts = policy == 'interrupt' and not waiters[place]
  if interrupts then place = 1 end
  if alive[1] or place > 1 then
    local left_ms = alive[1] and lease_left(running, alive[1], now) or 0
    if policy == 'reject' then
      return refused('busy', now, holder, left_ms)
    end
    local newcomer = interrupts or not waiters[place]
    if newcomer and not resumes and #waiters >= queue_limit then -- what was accepted has its place
      return {'full', now}
    end
    leave_queue(queue, waiting, gone)
    if newcomer then
      local arrival = redis.call('HINCRBY', conversation, 'arrivals', 1)
      redis.call('ZADD', queue, interrupts and -arrival or arrival, me)
    end
    if interrupts then
      -- Once, when it arrives: a turn that gets in meanwhile is not what it wanted to stop.
      redis.call('SADD', cancelling, alive[1])
      redis.call('PUBLISH', mailboxes .. holder, 'cancel ' .. alive[1])
    end
    redis.call('ZADD', waiting, digits(now + vouch_ms), turn)
    if resumes then redis.call('ZADD', accepted, 'XX', digits(now + vouch_ms), turn) end
    return {'queued', now, place, session, holder, left_ms}
  end
end

-- 7 The tenant's cap: a newcomer is turned away, the head of a queue keeps its place.
if max_running > 0 then shorten(running, now, lease_ms) end
if max_running > 0 and redis.call('ZCOUNT', running, '(' .. digits(now), '+inf') >= max_running then
  if redis.call('ZSCORE', queue, me) then
    redis.call('ZADD', waiting, digits(now + vouch_ms), turn)
    return {'queued', now, place, session, holder, 0}
  end
  if resumes then redis.call('ZADD', accepted, 'XX', digits(now + vouch_ms), turn) end
  return {'limited', now}
end

-- 8 It is written down, with its key: accepted for later, or granted. The fence grows over pruning and total loss because
-- the clock does.
fence = math.max(fence + 1, now)
local at, number = digits(now), digits(fence)
if opens then
  open_session({conversation = conversation, sessions = sessions, tombstones = tombstones},
    {cid = cid, session = session, generation = generation, nonce = nonce, history = history, source = found[9] or ARGV[9]}, now)
end
redis.call('ZADD', sessions, at, cid)
redis.call('ZREMRANGEBYSCORE', turns, '-inf', at)
redis.call('ZADD', turns, digits(now + record_ms), turn)
local facts = {'cid', cid, 'session', session, 'generation', digits(generation), 'replica', replica, 'route', ARGV[18],
  'key', ARGV[20]}
local function note(name, value)
  facts[#facts + 1], facts[#facts + 2] = name, value
end
if ARGV[29] ~= '' then note('about', ARGV[29]) end
if ARGV[28] ~= '' then note('keep_ms', digits(integer(ARGV[28], 'keep_ms'))) end
if request ~= '' then
  note('state', 'accepted')
  note('request', request)
  note('accepted_ms', at)
  note('home', cid)
else
  note('state', 'running')
  note('fence', number)
  note('started_ms', at)
end
redis.call('HSET', record, unpack(facts))
redis.call('PEXPIRE', record, digits(record_ms))
if idempotency then
  redis.call('HSET', idempotency, 'turn', turn, 'cid', cid, 'session', session, 'state', 'running')
  if not resumes then redis.call('HSET', idempotency, 'fingerprint', fingerprint) end -- what resumes was compared before
  if key_ms > 0 then
    redis.call('PEXPIRE', idempotency, digits(key_ms))
  else
    redis.call('PERSIST', idempotency)
  end
end
if request ~= '' then
  redis.call('ZADD', accepted, digits(now + vouch_ms), turn)
  redis.call('HSET', conversation, 'active_ms', at)
  return {'accepted', now, session, digits(generation), nonce}
end
redis.call('HSET', conversation, 'fence', number, 'turn', turn, 'holder', replica, 'active_ms', at)
for _, other in ipairs(dead) do
  redis.call('ZREM', running, other)
  redis.call('SREM', live, other)
end
if exclusive and queued > 0 then
  gone[#gone + 1] = me
  leave_queue(queue, waiting, gone)
end
redis.call('SADD', live, turn)
redis.call('ZADD', running, digits(now + lease_ms), turn)
if resumes then
  redis.call('HDEL', record, 'request')
  redis.call('ZREM', accepted, turn)
end
return granted()
