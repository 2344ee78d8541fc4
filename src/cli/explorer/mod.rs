//! The explorer: a page that runs command lines of this program while its controls move.
//!
//! The page only builds command lines and shows their output, so its figures are the command line's. The command lines run as
//! WebAssembly inside the page (the program built for `wasm32-wasip1`), or in the program that serves it ([`server`]).

#[cfg(unix)]
mod confined;
#[cfg(unix)]
pub mod server;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use pipesim_models::hardware;
use pipesim_models::model_spec;
use pipesim_report::{filled, inside_script};
use serde_json::{Value, json};
use std::io::{self, Write};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const WORKER: &str = include_str!("worker.js");
const SCRIPTS: [&str; 5] = [
    include_str!("state.js"),
    include_str!("engine.js"),
    include_str!("views.js"),
    include_str!("editor.js"),
    include_str!("start.js"),
];

/// What runs the command lines of a page.
pub enum Engine<'a> {
    /// This WebAssembly module, inside the page.
    Inside(&'a [u8]),
    /// A server that knows this token.
    Served(&'a str),
}

/// Returns the page, which opens from disk unless it is served. `schedules` is the list of `pipesim schedules --json`,
/// `start` what the page begins with: fields of its form and files.
///
/// # Errors
/// The module cannot be compressed.
pub fn page(engine: &Engine<'_>, schedules: &Value, start: &Value) -> io::Result<String> {
    let (token, program, connect) = match engine {
        Engine::Served(token) => (Some(token), String::new(), "'self'"),
        Engine::Inside(module) => {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(module)?;
            (None, STANDARD.encode(packed.finish()?), "'none'")
        }
    };
    let facts = json!({
        "schedules": schedules["schedules"],
        "models": model_spec::names().collect::<Vec<_>>(),
        "hardware": hardware::names().collect::<Vec<_>>(),
        "token": token,
        "start": start,
    });
    let parts = [
        ("{{connect}}", connect),
        ("{{style}}", STYLE),
        ("{{facts}}", &inside_script(&facts.to_string())),
        ("{{worker}}", WORKER),
        ("{{program}}", &program),
        ("{{script}}", &SCRIPTS.concat()),
    ];
    Ok(filled(PAGE, &parts))
}
