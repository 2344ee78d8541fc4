//! NVRTC, the run-time compiler of CUDA C++.

use super::super::library::{self, Missing};
use cudarc::nvrtc::sys;
use std::ffi::{CString, c_char, c_int};

super::functions! {
    /// The NVRTC functions in use.
    Functions from sys {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcCreateProgram(
            *mut sys::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        nvrtcCompileProgram(sys::nvrtcProgram, c_int, *const *const c_char);
        nvrtcDestroyProgram(*mut sys::nvrtcProgram);
        nvrtcGetCUBINSize(sys::nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(sys::nvrtcProgram, *mut c_char);
        nvrtcGetPTXSize(sys::nvrtcProgram, *mut usize);
        nvrtcGetPTX(sys::nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(sys::nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(sys::nvrtcProgram, *mut c_char);
    } -> sys::nvrtcResult
}

/// Why compiling failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// NVRTC is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// NVRTC is installed but unusable.
    #[error("expected a working NVRTC, found one that {0}: reinstall it")]
    Broken(String),
    /// NVRTC rejects the text or the options.
    #[error("{call} failed with code {code}{}{log}", if log.is_empty() { "" } else { ":\n" })]
    Refused {
        /// Function that was called.
        call: &'static str,
        /// NVRTC's error code: 5 is an unknown option, 6 an error in the text, 7 missing builtins.
        code: u32,
        /// The compiler's messages.
        log: String,
    },
}

/// Kind of code to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Machine code for one architecture.
    Cubin,
    /// Assembly text that the driver compiles for the device.
    Ptx,
}

/// The compiler, loaded.
pub struct Nvrtc {
    functions: Functions,
}

/// Calls a function of NVRTC and turns its status into a result.
macro_rules! call {
    ($api:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: result pointers point at locals, or at buffers of the size that NVRTC asked for; texts are zero-terminated
        // and outlive the call; the program is alive.
        match unsafe { ($api.functions.$name)($($argument),*) } {
            0 => Ok(()),
            code => Err(CompileError::Refused { call: stringify!($name), code, log: String::new() }),
        }
    }};
}

impl Nvrtc {
    /// Loads the library.
    pub fn load() -> Result<Nvrtc, CompileError> {
        let library = library::open(&library::NVRTC)?.reopen().map_err(CompileError::Broken)?;
        Functions::load(&library)
            .map(|functions| Nvrtc { functions })
            .map_err(|missing| CompileError::Broken(format!("lacks {}", missing.join(", "))))
    }

    /// Returns the major and minor version.
    pub fn version(&self) -> Result<(i32, i32), CompileError> {
        let (mut major, mut minor) = (0, 0);
        call!(self.nvrtcVersion(&mut major, &mut minor))?;
        Ok((major, minor))
    }

    /// Compiles one translation unit.
    pub fn compile(&self, text: &str, options: &[String], image: Image) -> Result<Vec<u8>, CompileError> {
        let whole = |text: &str| {
            CString::new(text).map_err(|_| CompileError::Broken("was given a text with a zero byte".into()))
        };
        let (text, name) = (whole(text)?, c"kernels.cu");
        let options = options.iter().map(|option| whole(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (mut program, none) = (std::ptr::null_mut(), std::ptr::null());
        call!(self.nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none))?;
        let outcome = self.compile_program(program, &options, image);
        call!(self.nvrtcDestroyProgram(&mut program))?;
        outcome
    }

    fn compile_program(
        &self,
        program: sys::nvrtcProgram,
        options: &[*const c_char],
        image: Image,
    ) -> Result<Vec<u8>, CompileError> {
        if let Err(error) = call!(self.nvrtcCompileProgram(program, options.len() as c_int, options.as_ptr())) {
            let CompileError::Refused { call, code, .. } = error else { return Err(error) };
            return Err(CompileError::Refused { call, code, log: self.log(program)? });
        }
        let mut bytes = 0;
        match image {
            Image::Cubin => call!(self.nvrtcGetCUBINSize(program, &mut bytes))?,
            Image::Ptx => call!(self.nvrtcGetPTXSize(program, &mut bytes))?,
        }
        let mut code = vec![0_u8; bytes];
        match image {
            Image::Cubin => call!(self.nvrtcGetCUBIN(program, code.as_mut_ptr().cast()))?,
            Image::Ptx => call!(self.nvrtcGetPTX(program, code.as_mut_ptr().cast()))?,
        }
        Ok(code)
    }

    fn log(&self, program: sys::nvrtcProgram) -> Result<String, CompileError> {
        let mut bytes = 0;
        call!(self.nvrtcGetProgramLogSize(program, &mut bytes))?;
        let mut log = vec![0_u8; bytes];
        call!(self.nvrtcGetProgramLog(program, log.as_mut_ptr().cast()))?;
        Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_string())
    }
}
