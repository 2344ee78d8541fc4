//! Values of a trace's fields. A field of another type than expected becomes [`Scalar::Other`] and spoils only its event.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A number, a text, or anything else.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scalar {
    Number(f64),
    Whole(i64),
    Text(String),
    #[default]
    Other,
}

impl Scalar {
    pub fn text(&self) -> &str {
        if let Scalar::Text(text) = self { text } else { "" }
    }

    /// Returns a whole number; Nsight Systems writes them as texts.
    pub fn whole(&self) -> Option<i64> {
        match self {
            Scalar::Whole(whole) => Some(*whole),
            Scalar::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i64),
            Scalar::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// Returns microseconds as nanoseconds; `None` for what is no time within 120 years.
    pub fn microseconds(&self) -> Option<i64> {
        const MOST: f64 = 4e18;
        let ns = match self {
            Scalar::Whole(us) => *us as f64 * 1e3,
            Scalar::Number(us) => (us * 1e3).round(),
            _ => return None,
        };
        (ns.abs() < MOST).then_some(ns as i64)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Whole(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::Number(value as f64), Scalar::Whole))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scalar, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        // With serde_json's feature `arbitrary_precision`, which other crates switch on, numbers come as maps.
        if let Some(key) = map.next_key::<String>()? {
            if key == "$serde_json::private::Number" {
                let text = map.next_value::<String>()?;
                let whole = text.parse().map(Scalar::Whole);
                return Ok(whole.or_else(|_| text.parse().map(Scalar::Number)).unwrap_or_default());
            }
            map.next_value::<IgnoredAny>()?;
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}
