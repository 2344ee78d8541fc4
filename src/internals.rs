//! Every module of the crate, for the tests, benches and fuzz targets of its own repository. Nothing here is promised to anybody.

macro_rules! all {
    ($($(#[$when:meta])? $module:ident)*) => {
        $($(#[$when])? pub mod $module { #[allow(unused_imports)] pub use crate::$module::*; })*
    };
}

all! {
    activation advice anatomy balance check cli cost csv cuda deadlock delivery doctor dsl ending exact exec experiment export forecast graph hardware layout legible lowering memory metrics model nearest op open placement
    ranks remedy report resolve schedule settle sim statistics timeline
}
