-- A whole number of at most 15 digits (Lua's are exact to there), or the script stops before its first write.
local function integer(value, name)
  if not string.match(value or '', '^%-?%d+$') or #value > 15 then
    error(name .. ' is not a whole number: ' .. tostring(value))
  end
  return tonumber(value)
end

-- The same number as text, in full: tostring would turn large ones into 1e+14.
local function digits(number)
  return string.format('%.0f', number)
end
