//! Chains of built-in kernels: each kernel processes the output of the previous kernel as it arrives. For a kernel that needs its whole
//! input, the chain first collects the input in a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use super::table::{FoldInput, KernelOptions, ReadyKernel};
use super::{BuiltinError, find, run_builtin};
use crate::fold::{Fold, Stream};

/// Size of a chain's output buffer, in bytes.
const BUFFER_BYTES: usize = 128 << 10;

/// One kernel of a chain.
#[derive(Clone, Debug)]
pub struct ChainLink {
    /// Place of the kernel in the whole pipeline, from 1.
    pub number: usize,
    /// Name of the kernel.
    pub name: String,
    /// Arguments of the kernel.
    pub args: Vec<String>,
    /// Path of the file that may collect the kernel's input; the file does not exist yet.
    pub spool: PathBuf,
}

impl ChainLink {
    /// Returns the error of this kernel or, if this kernel wrote to a later one that failed, of that one.
    pub fn failed(&self, source: BuiltinError) -> LinkError {
        // The kernel that failed may be a later one, to which this one wrote.
        let source = match source {
            BuiltinError::Write(error) => match error.downcast::<LinkError>() {
                Ok(further) => return further,
                Err(error) => BuiltinError::Write(error),
            },
            other => other,
        };
        LinkError {
            number: self.number,
            name: self.name.clone(),
            source,
        }
    }

    fn io(&self, source: BuiltinError) -> io::Error {
        io::Error::other(self.failed(source))
    }
}

/// Returns the inputs that a kernel's arguments name, which are no data; none if the arguments are invalid.
pub fn named_inputs(name: &str, args: &[String]) -> Vec<String> {
    let options = find(name).and_then(|kernel| KernelOptions::parse(kernel, args));
    options.map_or_else(
        |_| Vec::new(),
        |options| options.named().map(str::to_owned).collect(),
    )
}

/// Kernel of a chain that failed, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("stage {number} ({name}): {source}")]
pub struct LinkError {
    /// Place of the kernel in the whole pipeline, from 1.
    pub number: usize,
    /// Name of the kernel.
    pub name: String,
    /// Error of the kernel.
    pub source: BuiltinError,
}

/// First kernel of a chain: accepts input bytes, and writes the rest of the output when the input ends.
pub trait ChainSink: Write {
    /// Ends the input of the chain.
    fn finish(self: Box<Self>) -> Result<(), LinkError>;
}

/// Chains kernels; the last kernel writes to `out`. All arguments are checked before any kernel runs.
pub fn chain(links: &[ChainLink], out: File) -> Result<Box<dyn ChainSink>, LinkError> {
    let end: Box<dyn ChainSink> = Box::new(ChainEnd {
        out: BufWriter::with_capacity(BUFFER_BYTES, out),
        last: links.last().cloned(),
    });
    links
        .iter()
        .rev()
        .try_fold(end, |next, link| link.before(next))
}

impl ChainLink {
    /// Puts this kernel before another kernel, or before the end of the chain.
    fn before(&self, next: Box<dyn ChainSink>) -> Result<Box<dyn ChainSink>, LinkError> {
        let failed = |error| self.failed(error);
        let link = self.clone();
        let kernel = find(&self.name).map_err(failed)?;
        let options = KernelOptions::parse(kernel, &self.args).map_err(failed)?;
        if kernel.prepare.is_some() {
            return Ok(Box::new(Gathering::new(link, next)));
        }
        Ok(match kernel.code.make(&options).map_err(failed)? {
            // The position of a number in text depends on all text before it.
            (FoldInput::Values, _) if options.is("dtype", "text") => {
                Box::new(Gathering::new(link, next))
            }
            (_, ReadyKernel::Stream(stream)) => Box::new(Pushing { link, stream, next }),
            (_, ReadyKernel::Fold(fold)) => Box::new(FoldLink {
                link,
                fold,
                offset: 0,
                next,
            }),
            (_, ReadyKernel::Whole(_)) => Box::new(Gathering::new(link, next)),
        })
    }
}

struct Pushing {
    link: ChainLink,
    stream: Box<dyn Stream>,
    next: Box<dyn ChainSink>,
}

impl Write for Pushing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let pushed = self.stream.push(bytes, &mut self.next);
        pushed.map_err(|error| self.link.io(error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ChainSink for Pushing {
    fn finish(self: Box<Self>) -> Result<(), LinkError> {
        let Self {
            link,
            stream,
            mut next,
        } = *self;
        stream
            .finish(&mut next)
            .map_err(|error| link.failed(error))?;
        next.finish()
    }
}

struct FoldLink {
    link: ChainLink,
    fold: Box<dyn Fold>,
    offset: u64,
    next: Box<dyn ChainSink>,
}

impl Write for FoldLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.fold.update(self.offset, bytes);
        taken.map_err(|error| self.link.io(error))?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ChainSink for FoldLink {
    fn finish(self: Box<Self>) -> Result<(), LinkError> {
        let Self {
            link,
            fold,
            mut next,
            ..
        } = *self;
        fold.finish(&mut next).map_err(|error| link.failed(error))?;
        next.finish()
    }
}

struct Gathering {
    link: ChainLink,
    /// File that collects the input; created with the first bytes.
    file: Option<File>,
    next: Box<dyn ChainSink>,
}

impl Gathering {
    fn new(link: ChainLink, next: Box<dyn ChainSink>) -> Self {
        let file = None;
        Self { link, file, next }
    }

    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            self.file = Some(File::create_new(&self.link.spool)?);
        }
        Ok(self.file.as_mut().expect("it was just made"))
    }
}

impl Write for Gathering {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file().and_then(|file| file.write(bytes));
        written.map_err(|error| self.link.io(BuiltinError::Gather(error)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ChainSink for Gathering {
    fn finish(mut self: Box<Self>) -> Result<(), LinkError> {
        let made = self.file().map(|_| ());
        let Self { link, mut next, .. } = *self;
        made.map_err(|error| link.failed(BuiltinError::Gather(error)))?;
        let mut inputs = named_inputs(&link.name, &link.args);
        inputs.push(link.spool.to_string_lossy().into_owned());
        let run = run_builtin(&link.name, &link.args, &inputs, &mut next);
        // If this fails, the cleanup of the private directory removes the file.
        let _ = std::fs::remove_file(&link.spool);
        run.map_err(|error| link.failed(error))?;
        next.finish()
    }
}

struct ChainEnd {
    out: BufWriter<File>,
    last: Option<ChainLink>,
}

impl Write for ChainEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl ChainSink for ChainEnd {
    fn finish(mut self: Box<Self>) -> Result<(), LinkError> {
        match (self.out.flush(), self.last) {
            (Err(error), Some(last)) => Err(last.failed(BuiltinError::Write(error))),
            _ => Ok(()),
        }
    }
}
