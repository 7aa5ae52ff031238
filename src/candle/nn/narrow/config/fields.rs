//! The fields of a JSON object, each of a known name.

use ::candle::{bail, Error, Result};
use serde_json::{Map, Value};

/// An object, and what errors call it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub name: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn of(name: &'a str, value: &'a Value) -> Result<Self> {
        match value.as_object() {
            Some(map) => Ok(Self { name, map }),
            None => bail!("{name} is {value}; expected an object"),
        }
    }

    /// Refuses fields beside those that are read and those that change nothing of a module's weights. A field that is null says nothing.
    pub fn known(&self, read: &[&str], other: &[&str]) -> Result<()> {
        let is_known = |name: &str| read.contains(&name) || other.contains(&name);
        match self.map.iter().find(|(name, value)| !value.is_null() && !is_known(name)) {
            Some((name, value)) => bail!("{}: unknown field {name}: {value}", self.name),
            None => Ok(()),
        }
    }

    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub fn wrong(&self, name: &str, expected: &str) -> Error {
        let value = self.map.get(name).unwrap_or(&Value::Null);
        Error::msg(format!("{}: {name} is {value}; expected {expected}", self.name))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.get(name).map(|value| value.as_str().ok_or_else(|| self.wrong(name, "a string"))).transpose()
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.get(name).map(|value| value.as_bool().ok_or_else(|| self.wrong(name, "true or false"))).transpose()
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>> {
        self.get(name).map(|value| value.as_i64().ok_or_else(|| self.wrong(name, "an integer"))).transpose()
    }

    pub fn texts(&self, name: &str) -> Result<Vec<&'a str>> {
        let Some(value) = self.get(name) else { return Ok(vec![]) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        list.ok_or_else(|| self.wrong(name, "a list of strings"))
    }

    /// A field that has to be one of these, if it is there.
    pub fn among(&self, name: &str, values: &[&str]) -> Result<Option<&'a str>> {
        let text = self.text(name)?;
        match text.is_none_or(|text| values.contains(&text)) {
            true => Ok(text),
            false => Err(self.wrong(name, &values.join(", "))),
        }
    }

    /// Rows and columns of a block.
    pub fn block(&self, name: &str) -> Result<Option<[usize; 2]>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let numbers = value.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
        match numbers.as_deref() {
            Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok(Some([rows as usize, columns as usize])),
            _ => Err(self.wrong(name, "two positive integers")),
        }
    }

    /// The size of a group; none for -1, one group for all.
    pub fn group(&self, name: &str) -> Result<Option<usize>> {
        match self.number(name)? {
            None | Some(-1) => Ok(None),
            Some(size) if size > 0 => Ok(Some(size as usize)),
            _ => Err(self.wrong(name, "a positive integer or -1")),
        }
    }

    /// Refuses what changes the meaning of weights and no reader has.
    pub fn absent(&self, names: &[&str]) -> Result<()> {
        let is_empty = |value: &Value| match value {
            Value::Bool(is_set) => !is_set,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        match names.iter().find(|name| self.get(name).is_some_and(|value| !is_empty(value))) {
            Some(name) => Err(self.wrong(name, "no such field: no reader has it")),
            None => Ok(()),
        }
    }
}
