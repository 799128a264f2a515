"""The scripts that change job records: each change and its stream entry in one atomic step. Lua, run by Redis.

A serialised Job is extended inside them by appending fields, of which protobuf takes the last one (job_id,
cancel_requested). What stands before each says what goes in and what comes out; adlro.store.jobs calls them. `$NAME`
in them is that name of adlro.store.keys.
"""

from __future__ import annotations

from string import Template

from adlro.store import keys


def _named(script: str) -> str:
    """The script with the names of adlro.store.keys; KeyError for one that is not there."""
    return Template(script).substitute(vars(keys))


_COMMON = """
local function varint(n)
  local s = ''
  while n >= 128 do s = s .. string.char(n % 128 + 128); n = math.floor(n / 128) end
  return s .. string.char(n)
end
local function announce(change, job)
  local rev = redis.call('INCR', '$REVISION')
  -- JobStreamEntry: change = 1 (varint), job = 2 (bytes)
  local entry = '\\8' .. string.char(change) .. '\\18' .. varint(#job) .. job
  redis.call('XADD', '$EVENTS', 'MAXLEN', '~', $EVENTS_KEPT, rev .. '-0', 'm', entry)
  return rev
end
"""

# Jobs 1 to `done` are in the index of users, and those from `from` to `to`: a job recorded by a process that knows no
# index, of an older version, leaves a gap. `indexed` gives the number up to which there is none.
_INDEXED = """
local function indexed()
  local found = redis.call('HMGET', '$INDEX', 'done', 'from', 'to')
  local done, from, to = tonumber(found[1] or 0), tonumber(found[2] or 1), tonumber(found[3] or 0)
  return from <= done + 1 and math.max(done, to) or done
end
"""

# What a job's end puts into the indexes of ended jobs: its id, the time of its end and its class of durations, either
# may be empty. A job that changes after its end leaves the class that it was in.
_ENDED = """
local function ended(id, end_s, ran)
  local number = string.format('%018d', tonumber(string.sub(id, 5)))
  redis.call('ZADD', '$ENDED', end_s == '' and '-inf' or end_s, number)
  local before = redis.call('HGET', '$JOB' .. id, 'ran')
  if before and before ~= ran then redis.call('ZREM', '$RAN' .. before, number) end
  if ran ~= '' then
    redis.call('ZADD', '$RAN' .. ran, end_s, number)
    redis.call('HSET', '$JOB' .. id, 'ran', ran)
  end
end
"""

# A user's limits, in ARGV[1] to [3] (0: none): jobs that have not ended, jobs a second, jobs at once after a pause
# (with a rate). `refused` returns nothing where so many more jobs of the user are accepted. An array may be larger than
# what is left of the burst: what follows it waits the longer.
_LIMITS = """
local most, rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now
local function refused(user, more)
  if most > 0 then
    local count = tonumber(redis.call('HGET', '$ACTIVE_COUNTS', user) or 0)
    if count + more > most then return {2, count, ''} end
  end
  if rate > 0 then
    if not now then
      local time = redis.call('TIME')
      now = time[1] + time[2] / 1e6
    end
    -- A token bucket: what was left, and when.
    local left, at = string.match(redis.call('HGET', '$BUCKETS', user) or '', '(%S+) (%S+)')
    left = left and math.min(burst, left + math.max(0, now - at) * rate) or burst
    if left < 1 then return {3, math.ceil((1 - left) / rate * 1000), ''} end
    redis.call('HSET', '$BUCKETS', user, string.format('%.6f %.6f', left - more, now))
  end
end
"""

# `create` records a job and returns its id and its revision; `index_created` follows the last one.
_CREATE_ONE = """
local last, count = 0, 0
local function create(body, user)
  last, count = redis.call('INCR', '$SEQUENCE'), count + 1
  local id = 'job-' .. last
  local job = body .. '\\10' .. varint(#id) .. id
  local rev = announce(1, job)
  redis.call('HSET', '$JOB' .. id, 'm', job, 'rev', rev, 'version', 0, 'state', 1)
  redis.call('SADD', '$ACTIVE', id)
  redis.call('HINCRBY', '$ACTIVE_COUNTS', user, 1)
  redis.call('ZADD', '$USER' .. user, last, id)
  return id, rev
end
local function index_created()
  if count > 0 and redis.call('HINCRBY', '$INDEX', 'to', count) ~= last then
    -- There is a gap before these.
    redis.call('HINCRBY', '$INDEX', 'to', -count)
    redis.call('HSET', '$INDEX', 'done', indexed(), 'from', last - count + 1, 'to', last)
  end
end
"""

# ARGV: a user's limits (see _LIMITS), then four a job: request key (may be empty), digest, Job without job_id, user.
# Returns {status, value, job_id} a job: 0 created, with its revision; 1 existing, with "job_id digest"; 2 refused, the
# user has too many, with how many; 3 refused, he submits too fast, with the milliseconds to wait.
CREATE = _named(
    _COMMON
    + _INDEXED
    + _LIMITS
    + _CREATE_ONE
    + """
local out = {}
for i = 4, #ARGV, 4 do
  local request, digest, body, user = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local known = request ~= '' and redis.call('HGET', '$REQUESTS', request)
  local refusal = not known and refused(user, 1)
  if known then
    out[#out + 1] = {1, 0, known}
  elseif refusal then
    out[#out + 1] = refusal
  else
    local id, rev = create(body, user)
    if request ~= '' then redis.call('HSET', '$REQUESTS', request, id .. ' ' .. digest) end
    out[#out + 1] = {0, rev, id}
  end
end
index_created()
return out
"""
)

# ARGV: a user's limits (see _LIMITS), request key (may be empty), digest, user, the Job that all jobs of the array have
# in common (without job_id), then for each job what it has alone, as fields that are appended.
# Returns {status, value, array_id} as CREATE does; 0 created, with the number of its jobs. All jobs or none.
CREATE_ARRAY = _named(
    _COMMON
    + _INDEXED
    + _LIMITS
    + _CREATE_ONE
    + """
local request, digest, user, body = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local known = request ~= '' and redis.call('HGET', '$REQUESTS', request)
if known then return {1, 0, known} end
local refusal = refused(user, #ARGV - 7)
if refusal then return refusal end
local array_id = 'array-' .. (tonumber(redis.call('GET', '$SEQUENCE') or 0) + 1)
-- Job.spec = 2, JobSpec.array = 22, ArrayTask.array_id = 1: a message that comes again is merged.
local field = '\\10' .. varint(#array_id) .. array_id
field = '\\178\\1' .. varint(#field) .. field
field = '\\18' .. varint(#field) .. field
for i = 8, #ARGV do create(body .. ARGV[i] .. field, user) end
redis.call('HSET', '$ARRAY' .. array_id, 'count', count, 'ended', 0, 'failed', 0)
if request ~= '' then redis.call('HSET', '$REQUESTS', request, array_id .. ' ' .. digest) end
index_created()
return {0, count, array_id}
"""
)

# ARGV: ids of jobs and of arrays. Returns of each: {its state} of a job, {jobs, ended, not succeeded} of an array,
# nothing where there is none.
ENDS = _named("""
local out = {}
for i, id in ipairs(ARGV) do
  local found
  if string.sub(id, 1, 6) == 'array-' then
    found = redis.call('HMGET', '$ARRAY' .. id, 'count', 'ended', 'failed')
  else
    found = redis.call('HMGET', '$JOB' .. id, 'state')
  end
  out[i] = found[1] and found or {}
end
return out
""")

# ARGV: bytes, then job ids. Returns what there is of each: {m, rev, version}, or a text where its key holds something
# else; of the first jobs only, as many as have so many bytes together and at least one. 0 bytes: of all. Nobody knows
# before how large a record is.
READ = _named("""
local out, size, most = {}, 0, tonumber(ARGV[1])
for i = 2, #ARGV do
  local found = redis.pcall('HMGET', '$JOB' .. ARGV[i], 'm', 'rev', 'version')
  size = size + (not found.err and found[1] and #found[1] or 0)
  if most > 0 and size > most and i > 2 then break end
  out[i - 1] = found.err or found
end
return out
""")

# ARGV: a user; a job number; up to which one (empty: as far as the index has no gap); how many jobs. Returns {up to
# which one, the newest number}, then {reached, job ids} for the user's jobs and for those of nobody knows whom: those
# above the number, so many of each at most; `reached` is where that ended it.
OF_USER = _named(
    _INDEXED
    + """
local upto = ARGV[3] ~= '' and ARGV[3] or indexed()
local out = {tonumber(upto), tonumber(redis.call('GET', '$SEQUENCE') or 0)}
for _, user in ipairs({ARGV[1], '$UNKNOWN_USER'}) do
  local key = '$USER' .. user
  local ids = redis.call('ZRANGEBYSCORE', key, '(' .. ARGV[2], upto, 'LIMIT', 0, ARGV[4])
  local reached = #ids == tonumber(ARGV[4]) and redis.call('ZSCORE', key, ids[#ids]) or ''
  out[#out + 1] = {reached, ids}
end
return out
"""
)

# ARGV: a user; a job number (+inf: any); how many jobs. As OF_USER, for jobs below the number, the newest first.
OF_USER_BACK = _named(
    _INDEXED
    + """
local out = {indexed(), tonumber(redis.call('GET', '$SEQUENCE') or 0)}
for _, user in ipairs({ARGV[1], '$UNKNOWN_USER'}) do
  local key = '$USER' .. user
  local ids = redis.call('ZREVRANGEBYSCORE', key, '(' .. ARGV[2], '-inf', 'LIMIT', 0, ARGV[3])
  local reached = #ids == tonumber(ARGV[3]) and redis.call('ZSCORE', key, ids[#ids]) or ''
  out[#out + 1] = {reached, ids}
end
return out
"""
)

# ARGV: a user. Returns {up to which number the index has no gap, the newest number}, then the ids of the jobs that are
# not final, of the user and of nobody knows whom. However many have ended: Redis goes through the smaller set.
ACTIVE_OF_USER = _named(
    _INDEXED
    + """
local out = {indexed(), tonumber(redis.call('GET', '$SEQUENCE') or 0)}
for _, user in ipairs({ARGV[1], '$UNKNOWN_USER'}) do
  out[#out + 1] = redis.call('ZINTER', 2, '$USER' .. user, '$ACTIVE')
end
return out
"""
)

# ARGV: a user. Returns how many jobs he has; nothing while the index has a gap, or jobs of nobody knows whom.
COUNT_OF_USER = _named(
    _INDEXED
    + """
if indexed() < tonumber(redis.call('GET', '$SEQUENCE') or 0) then return false end
if redis.call('EXISTS', '$USER' .. '$UNKNOWN_USER') == 1 then return false end
return redis.call('ZCARD', '$USER' .. ARGV[1])
"""
)

# ARGV: up to which number the index has no gap, then the users of the jobs that follow; nothing is written where that
# number is another by now. Returns {up to which number it has none, the newest number}.
INDEX = _named(
    _INDEXED
    + """
local done = tonumber(ARGV[1])
if #ARGV > 1 and indexed() == done then
  for i = 2, #ARGV do
    done = done + 1
    redis.call('ZADD', '$USER' .. ARGV[i], done, 'job-' .. done)
  end
  redis.call('HSET', '$INDEX', 'done', done)
end
return {indexed(), tonumber(redis.call('GET', '$SEQUENCE') or 0)}
"""
)

# ARGV: job ids. Returns {status, rev, m} of each: status 0 not found, 1 final, 2 requested now or before.
CANCEL = _named(
    _COMMON
    + """
local function cancel(id)
  local key = '$JOB' .. id
  local found = redis.call('HMGET', key, 'm', 'rev', 'state', 'cancel')
  if not found[1] then return {0, 0, ''} end
  if (tonumber(found[3]) or 1) >= 3 then return {1, tonumber(found[2]) or 0, found[1]} end
  if found[4] then return {2, tonumber(found[2]) or 0, found[1]} end
  local job = found[1] .. '\\120\\1'
  local rev = announce(2, job)
  redis.call('HSET', key, 'm', job, 'rev', rev, 'cancel', 1)
  return {2, rev, job}
end
local out = {}
for i, id in ipairs(ARGV) do out[i] = cancel(id) end
return out
"""
)

# ARGV: the most requests of a job that are not applied; a JobRequest without its number; then job ids. Returns
# {status, rev, m} of each: as CANCEL; 3 it runs, 4 it has too many requests.
REQUEST = _named(
    _COMMON
    + """
local most, request, once = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local function ask(id)
  local key = '$JOB' .. id
  local found = redis.call('HMGET', key, 'm', 'rev', 'state', 'asked', 'applied', 'once')
  if not found[1] then return {0, 0, ''} end
  local rev, state = tonumber(found[2]) or 0, tonumber(found[3]) or 1
  if once ~= '' and string.find(found[6] or '', once, 1, true) then return {2, rev, found[1]} end
  if state >= 3 then return {1, rev, found[1]} end
  if state == 2 then return {3, rev, found[1]} end
  local number = (tonumber(found[4]) or 0) + 1
  if number - (tonumber(found[5]) or 0) > most then return {4, rev, found[1]} end
  local body = request .. '\\8' .. varint(number)
  -- Job.requests = 23
  local field = '\\186\\1' .. varint(#body) .. body
  local job = found[1] .. field
  rev = announce(4, job)
  redis.call('HSET', key, 'm', job, 'rev', rev, 'asked', number, 'r' .. number, field)
  if once ~= '' then redis.call('HSET', key, 'once', string.sub((found[6] or '') .. once, -#once * 32)) end
  return {2, rev, job}
end
local out = {}
for i = 4, #ARGV do out[i - 3] = ask(ARGV[i]) end
return out
"""
)

# ARGV: token; incarnation (empty: no cursor), cluster revision, cluster time, last event, end of the hold,
# reservation; then eleven a move: job_id, version, state, Job, outcome, user, his attained service (empty: as before),
# the time of its end and its class of durations (where it is final, and they are known), the number of the last applied
# request, its array (empty: none).
# Nothing is written unless all of it can be. Returns the new revisions.
MOVE = _named(
    _COMMON
    + _ENDED
    + """
local token = redis.call('GET', '$TOKEN')
if token and tonumber(token) ~= tonumber(ARGV[1]) then
  return redis.error_reply('FENCED token ' .. ARGV[1] .. ' is not the newest, ' .. token .. ' is')
end
local versions = {}
for i = 8, #ARGV, 11 do
  local id = ARGV[i]
  local version = versions[id] or tonumber(redis.call('HGET', '$JOB' .. id, 'version') or -1)
  if version ~= tonumber(ARGV[i + 1]) then
    return redis.error_reply('STALE ' .. id .. ' is at version ' .. version .. ', not ' .. ARGV[i + 1])
  end
  versions[id] = version + 1
end
local out = {}
for i = 8, #ARGV, 11 do
  local id, version, state, job, outcome = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local key = '$JOB' .. id
  local asked = redis.call('HMGET', key, 'cancel', 'asked', 'applied')
  if asked[1] then job = job .. '\\120\\1' end
  if asked[2] then
    local applied, last = tonumber(ARGV[i + 9]), tonumber(asked[2])
    if state >= 3 then applied = last end  -- nothing is left to change
    for n = (tonumber(asked[3]) or 0) + 1, applied do redis.call('HDEL', key, 'r' .. n) end
    for n = applied + 1, last do job = job .. (redis.call('HGET', key, 'r' .. n) or '') end
    redis.call('HSET', key, 'applied', applied)
  end
  local rev = announce(3, job)
  redis.call('HSET', key, 'm', job, 'rev', rev, 'version', version + 1, 'state', state)
  if state >= 3 then ended(id, ARGV[i + 7], ARGV[i + 8]) end
  -- Once a job: what it moves to after its end counts no more.
  if state >= 3 and redis.call('SREM', '$ACTIVE', id) == 1 then
    if redis.call('HINCRBY', '$ACTIVE_COUNTS', ARGV[i + 5], -1) <= 0 then
      redis.call('HDEL', '$ACTIVE_COUNTS', ARGV[i + 5])
    end
    if ARGV[i + 10] ~= '' then
      redis.call('HINCRBY', '$ARRAY' .. ARGV[i + 10], 'ended', 1)
      if state > 3 then redis.call('HINCRBY', '$ARRAY' .. ARGV[i + 10], 'failed', 1) end
    end
  end
  if outcome ~= '' then redis.call('XADD', '$OUTCOMES', 'MAXLEN', '~', $OUTCOMES_KEPT, '*', 'm', outcome) end
  if ARGV[i + 6] ~= '' then redis.call('HSET', '$ATTAINED', ARGV[i + 5], ARGV[i + 6]) end
  out[#out + 1] = rev
end
if ARGV[2] ~= '' then
  redis.call('HSET', '$CURSOR', 'incarnation', ARGV[2], 'revision', ARGV[3], 'time_s', ARGV[4],
    'last_event_s', ARGV[5], 'hold_until_s', ARGV[6], 'reserved', ARGV[7])
end
return out
"""
)

# ARGV: token. The next lease's token will be larger.
RAISE_TOKEN = _named("""
if tonumber(redis.call('GET', '$TOKEN') or 0) < tonumber(ARGV[1]) then
  redis.call('SET', '$TOKEN', ARGV[1])
end
return 1
""")

# ARGV: revision, entries, bytes. Returns entries after the revision, so many at most and as many as have so many bytes
# together, at least one where there is one.
READ_EVENTS = _named("""
local out, size, after = {}, 0, ARGV[1] .. '-0'
while #out < tonumber(ARGV[2]) do
  local found = redis.call('XRANGE', '$EVENTS', '(' .. after, '+', 'COUNT', math.min(16, tonumber(ARGV[2]) - #out))
  for _, entry in ipairs(found) do
    size = size + #entry[2][2]
    if size > tonumber(ARGV[3]) and #out > 0 then return out end
    out[#out + 1] = {entry[1], entry[2][2]}
    after = entry[1]
  end
  if #found < 16 then break end
end
return out
""")

# How many jobs are final and in no index of ended jobs: of a process that knows none, of an older version. Of records
# that are not there nobody knows; they are put into it too.
_NOT_INDEXED = """
local function not_indexed()
  return tonumber(redis.call('GET', '$SEQUENCE') or 0) - redis.call('SCARD', '$ACTIVE') - redis.call('ZCARD', '$ENDED')
end
"""

# ARGV: the first and the last of some job numbers. Returns {how many jobs are in no index, then those numbers of them}.
NOT_INDEXED = _named(
    _NOT_INDEXED
    + """
local out = {not_indexed()}
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  if redis.call('SISMEMBER', '$ACTIVE', 'job-' .. number) == 0
      and not redis.call('ZSCORE', '$ENDED', string.format('%018d', number)) then
    out[#out + 1] = number
  end
end
return out
"""
)

# ARGV: three a job: its id, the time of its end, its class of durations (empty: not known). Puts them into the indexes
# of ended jobs, but for those that another process has put there or that have not ended.
INDEX_ENDED = _named(
    _ENDED
    + """
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  if redis.call('SISMEMBER', '$ACTIVE', id) == 0
      and not redis.call('ZSCORE', '$ENDED', string.format('%018d', tonumber(string.sub(id, 5)))) then
    ended(id, ARGV[i + 1], ARGV[i + 2])
  end
end
return 1
"""
)

# ARGV: how many jobs; the time of an end and a number (both may be empty): look after them; the earliest end and the
# end before which (may be empty); a user (empty: all). Goes through so many ended jobs, the last end first, of one end
# the highest number first. Returns {how many are in no index, how many it went through, the last of them, its end},
# then number and end of each that the user has (or nobody knows whether he has it).
ENDED_BEFORE = _named(
    _INDEXED
    + _NOT_INDEXED
    + """
local count, after_s, after, user = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[6]
local first = 0
local at = after ~= '' and redis.call('ZSCORE', '$ENDED', after)
if at and tonumber(at) == tonumber(after_s) then
  first = redis.call('ZREVRANK', '$ENDED', after) + 1
elseif after ~= '' then
  first = redis.call('ZCOUNT', '$ENDED', '(' .. after_s, '+inf')
elseif ARGV[5] ~= '' then
  first = redis.call('ZCOUNT', '$ENDED', ARGV[5], '+inf')
end
local found = redis.call('ZREVRANGE', '$ENDED', first, first + count - 1, 'WITHSCORES')
local known = user ~= '' and indexed()
local function whose(number)
  if user == '' or tonumber(number) > known then return true end
  local id = 'job-' .. string.match(number, '[1-9]%d*')
  return redis.call('ZSCORE', '$USER' .. user, id) or redis.call('ZSCORE', '$USER' .. '$UNKNOWN_USER', id)
end
local out = {not_indexed(), #found / 2, found[#found - 1] or '', found[#found] or ''}
for i = 1, #found, 2 do
  if whose(found[i]) then
    out[#out + 1] = found[i]
    out[#out + 1] = found[i + 1]
  end
end
return out
"""
)

# The last end, of a class of durations, with which a job may have run before a time: one that ended later would have
# taken longer. A little more than that, since durations are rounded.
_LAST_END = """
local function last_end(class, to_s)
  return class == $LONGEST_RAN and '+inf' or string.format('%.17g', tonumber(to_s) + 2 ^ class * 1.001 + 0.001)
end
"""

# ARGV: the begin and the end of a range of cluster time. Returns {how many jobs are in no index}, and how many jobs may
# have run in the range: those that RAN_WITHIN would name.
COUNT_RAN = _named(
    _NOT_INDEXED
    + _LAST_END
    + """
local out = {not_indexed(), 0}
for class = 0, $LONGEST_RAN do
  out[2] = out[2] + redis.call('ZCOUNT', '$RAN' .. class, ARGV[1], last_end(class, ARGV[2]))
end
return out
"""
)

# ARGV: the begin and the end of a range of cluster time, how many of a class at most. Returns {how many are in no
# index}, then for each class of durations the numbers of its jobs that may have run in it, each with its end.
RAN_WITHIN = _named(
    _NOT_INDEXED
    + _LAST_END
    + """
local out = {not_indexed()}
for class = 0, $LONGEST_RAN do
  local last = last_end(class, ARGV[2])
  out[class + 2] = redis.call('ZRANGEBYSCORE', '$RAN' .. class, ARGV[1], last, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
end
return out
"""
)

# ARGV: an end to begin with, the end of the range, how many at most, the class of durations. Returns what RAN_WITHIN
# does, of that class alone.
RAN_OF_CLASS = _named(
    _LAST_END
    + """
local class = tonumber(ARGV[4])
local last = last_end(class, ARGV[2])
return redis.call('ZRANGEBYSCORE', '$RAN' .. class, ARGV[1], last, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
"""
)

# ARGV: job numbers in 18 digits. Returns the end of each, empty where it has not ended.
ENDS_OF = _named("""
local out = {}
for i, number in ipairs(ARGV) do out[i] = redis.call('ZSCORE', '$ENDED', number) or '' end
return out
""")
