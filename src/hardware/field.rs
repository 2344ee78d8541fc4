//! A struct of named numbers, as in files: each with unit, bounds and description.

/// Description of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Key in files.
    pub name: &'static str,
    /// Description, with unit.
    pub what: &'static str,
    /// Whether 0 is allowed.
    pub may_be_zero: bool,
    /// Whether it is a whole number.
    pub is_count: bool,
    /// Maximum: 1 for shares, otherwise more than any machine has.
    pub most: f64,
}

/// Declares a struct of numbers that are read, written and listed by name. `positive` ones are above 0, `any` may be 0, and a
/// `count` is whole; each has a maximum.
macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident { $($bound:ident $field:ident <= $most:literal: $what:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $type {
            /// Name.
            pub name: String,
            $(#[doc = $what] pub $field: f64,)+
        }

        impl $type {
            /// Descriptions of all numbers, in the order of files.
            pub const FIELDS: &[Field] = &[
                $(Field {
                    name: stringify!($field),
                    what: $what,
                    may_be_zero: numbers!(@zero $bound),
                    is_count: numbers!(@count $bound),
                    most: $most,
                },)+
            ];

            /// Reads all numbers by name.
            pub(super) fn from_fields<E>(name: &str, read: impl Fn(&'static str) -> Result<f64, E>) -> Result<$type, E> {
                Ok($type { name: name.to_string(), $($field: read(stringify!($field))?,)+ })
            }

            /// Returns the number with this name.
            pub fn field_mut(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)+
                    _ => None,
                }
            }
        }
    };
    (@zero any) => { true };
    (@zero $bound:ident) => { false };
    (@count count) => { true };
    (@count $bound:ident) => { false };
}
pub(super) use numbers;
