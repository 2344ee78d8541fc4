//! A table of named numbers, as files give them: each with its unit, its bounds and what it is.

/// One number of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its key in files.
    pub name: &'static str,
    /// What it is, with its unit.
    pub what: &'static str,
    /// Whether it may be 0.
    pub may_be_zero: bool,
    /// Whether it counts something.
    pub is_count: bool,
    /// The most that it may be: 1 of a share, else what no machine comes near.
    pub most: f64,
}

/// A struct of numbers that are read, written and listed by name. `positive` ones must be above 0, `any` may be 0, and a `count` is whole;
/// each has the most that it may be.
macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident { $($bound:ident $field:ident <= $most:literal: $what:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $type {
            /// What it is called.
            pub name: String,
            $(#[doc = $what] pub $field: f64,)+
        }

        impl $type {
            /// Its numbers, in the order of files.
            pub const FIELDS: &[Field] = &[
                $(Field {
                    name: stringify!($field),
                    what: $what,
                    may_be_zero: numbers!(@zero $bound),
                    is_count: numbers!(@count $bound),
                    most: $most,
                },)+
            ];

            /// All numbers from a function of their names.
            pub(super) fn from_fields<E>(name: &str, read: impl Fn(&'static str) -> Result<f64, E>) -> Result<$type, E> {
                Ok($type { name: name.to_string(), $($field: read(stringify!($field))?,)+ })
            }

            /// The number of this name, to be changed.
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
