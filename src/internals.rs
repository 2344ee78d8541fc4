//! Every module of the crate, for the tests and benches of its own repository that the public API does not reach. No stability is promised.

macro_rules! all {
    ($($(#[$when:meta])? $module:ident)*) => {
        $($(#[$when])? pub mod $module { #[allow(unused_imports)] pub use crate::$module::*; })*
    };
}

all! {
    activation advice model_spec balance check checkpoint cli compute cost csv deadlock delivery diagnosis doctor dsl epilogue exact exec experiment export step_estimate graph hardware import layout sanitize lowering memory mesh metrics model nearest op open placement
    ranks suggestion report resolve ordering schedule sim statistics timeline training_loop
}
