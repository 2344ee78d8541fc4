//! Values that a question's file writes as text: those with a name, or with a grammar of their own.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use std::fmt::Display;
use std::str::FromStr;

/// Writes a value as it is displayed.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Reads a value from its text; numbers need no quotes.
pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    ScalarValue::deserialize(deserializer)?.parsed()
}

/// Reads a list, or one value as a list of one.
pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum List<T> {
        One(T),
        Several(Vec<T>),
    }
    Ok(match List::deserialize(deserializer)? {
        List::One(one) => vec![one],
        List::Several(all) => all,
    })
}

/// A value without a list.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum ScalarValue {
    Whole(i64),
    Real(f64),
    Text(String),
}

impl ScalarValue {
    fn parsed<T: FromStr<Err: Display>, E: Error>(self) -> Result<T, E> {
        let text = match self {
            ScalarValue::Whole(number) => number.to_string(),
            ScalarValue::Real(number) => number.to_string(),
            ScalarValue::Text(text) => text,
        };
        text.parse().map_err(E::custom)
    }
}

/// The same for a value that may be absent.
pub mod optional {
    use super::{Deserialize, Deserializer, Display, FromStr, ScalarValue, Serialize, Serializer};

    /// Writes the value as it is displayed.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(T::to_string).serialize(serializer)
    }

    /// Reads the value from its text.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Option::<ScalarValue>::deserialize(deserializer)?.map(ScalarValue::parsed).transpose()
    }
}
