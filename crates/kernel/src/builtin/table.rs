//! The table of built-in kernels: what each is called, which arguments it takes, what it is made of. Lists,
//! help and error texts come from here.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;

use super::BuiltinError;
use crate::fold::{Fold, Stream};

/// What an argument can be that names an input, which is not part of what the kernel works on then.
pub(crate) const INPUT: &str = "INPUT";

/// An argument of a built-in kernel, given as `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name.
    pub key: &'static str,
    /// What it can be: the choices with `|` between them, or a word in capitals for a free value.
    pub values: &'static str,
    /// What it is unless given; empty if it may be left out and is then nothing.
    pub default: &'static str,
    /// What it is for, in one line.
    pub help: &'static str,
}

/// A built-in kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Counts changes of what results look like.
    pub revision: u32,
    /// What it does, in one line.
    pub help: &'static str,
    /// The arguments, in groups that kernels share.
    pub(crate) args: &'static [&'static [Arg]],
    /// How arguments are given, where they are not `key=value`.
    pub(crate) usage: Option<Usage>,
    pub(crate) code: Code,
    /// Finds arguments that were not given in the inputs, before the kernel is made; pieces cannot do that.
    pub(crate) prepare: Option<Prepare>,
}

/// Arguments that are not `key=value`.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Its arguments in one line.
    pub(crate) text: &'static str,
    /// Whether arguments are what it takes.
    pub(crate) check: fn(&Options) -> Result<(), BuiltinError>,
}

/// What all folds take: by their law the result is the same.
const THREADS: &[Arg] = &[Arg {
    key: "threads",
    values: "COUNT",
    default: "1",
    help: "threads that share the input (where it is no text of numbers); the result does not depend on them",
}];

/// See [`Kernel::prepare`].
pub(crate) type Prepare = fn(&mut Options, &[String]) -> Result<(), BuiltinError>;

impl Kernel {
    /// Its arguments.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> {
        let threads: &[Arg] = if self.is_fold() { THREADS } else { &[] };
        self.args.iter().copied().flatten().chain(threads)
    }

    /// Whether it takes its input in any pieces, and partial states of it can be merged (with some arguments
    /// at least).
    #[must_use]
    pub fn is_fold(&self) -> bool {
        matches!(self.code, Code::Fold(..) | Code::Either(..))
    }

    /// Whether it gives bytes as bytes come, so that kernels can be put one behind the other (with some
    /// arguments at least).
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(self.code, Code::Stream(..) | Code::Either(..))
    }

    /// Its arguments in one line, as `dtype=TYPE, out=text|f64`.
    #[must_use]
    pub fn usage(&self) -> String {
        if let Some(usage) = &self.usage {
            return usage.text.to_owned();
        }
        let args: Vec<_> = self
            .args()
            .map(|arg| format!("{}={}", arg.key, arg.values))
            .collect();
        if args.is_empty() {
            "no arguments".to_owned()
        } else {
            args.join(", ")
        }
    }
}

/// What the input of a fold is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// All files in order are one series of values; text is made binary first.
    Values,
    /// Each file is bytes of its own.
    Bytes,
}

/// Makes a kernel from its arguments, or runs it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Fold(Input, fn(&Options) -> Result<Box<dyn Fold>, BuiltinError>),
    Stream(Input, fn(&Options) -> Result<Box<dyn Stream>, BuiltinError>),
    /// Its arguments say which.
    Either(Input, fn(&Options) -> Result<Made, BuiltinError>),
    Whole(Whole),
}

/// Runs a kernel that takes its input as a whole.
pub(crate) type Whole = fn(&Options, &[String], &mut dyn Write) -> Result<(), BuiltinError>;

/// A kernel that was made.
#[derive(Debug)]
pub(crate) enum Made {
    Fold(Box<dyn Fold>),
    Stream(Box<dyn Stream>),
    Whole(Whole),
}

impl Code {
    /// Makes the kernel, and says what its input is.
    pub(crate) fn make(self, options: &Options) -> Result<(Input, Made), BuiltinError> {
        Ok(match self {
            Self::Fold(input, make) => (input, Made::Fold(make(options)?)),
            Self::Stream(input, make) => (input, Made::Stream(make(options)?)),
            Self::Either(input, make) => (input, make(options)?),
            Self::Whole(run) => (Input::Bytes, Made::Whole(run)),
        })
    }
}

/// The arguments of one run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) kernel: &'static Kernel,
    given: BTreeMap<&'static str, String>,
    /// All arguments as given, for kernels with a usage of their own.
    pub(crate) raw: Vec<String>,
}

impl Options {
    /// Checks names and choices.
    pub(crate) fn parse(kernel: &'static Kernel, args: &[String]) -> Result<Self, BuiltinError> {
        let mut options = Self {
            kernel,
            given: BTreeMap::new(),
            raw: args.to_vec(),
        };
        if let Some(usage) = &kernel.usage {
            (usage.check)(&options)?;
            return Ok(options);
        }
        for text in args {
            let known = text
                .split_once('=')
                .and_then(|(key, value)| Some((kernel.args().find(|arg| arg.key == key)?, value)));
            let Some((arg, value)) = known else {
                return Err(options.unknown(text));
            };
            let choice = arg.values.chars().any(char::is_lowercase) || arg.values.contains('|');
            if choice && !arg.values.split('|').any(|known| known == value) {
                return Err(options.wrong(arg.key, value, &arg.values.replace('|', ", ")));
            }
            options.given.insert(arg.key, value.to_owned());
        }
        Ok(options)
    }

    /// An argument that the kernel does not know.
    pub(crate) fn unknown(&self, arg: &str) -> BuiltinError {
        BuiltinError::Argument {
            kernel: self.kernel.name,
            arg: arg.to_owned(),
            valid: self.kernel.usage(),
        }
    }

    /// An argument with a value that it cannot have.
    pub(crate) fn wrong(&self, key: &'static str, value: &str, valid: &str) -> BuiltinError {
        BuiltinError::Value {
            key,
            value: value.to_owned(),
            valid: valid.to_owned(),
        }
    }

    /// Gives an argument a value, where nothing was given.
    pub(crate) fn set(&mut self, key: &'static str, value: String) {
        self.given.entry(key).or_insert(value);
    }

    /// What was given, else the default; `None` if that is nothing.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        let default = || Some(self.kernel.args().find(|arg| arg.key == key)?.default);
        let given = self.given.get(key).map(String::as_str);
        given.or_else(default).filter(|text| !text.is_empty())
    }

    /// Whether `key` is `value`.
    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.text(key) == Some(value)
    }

    /// A number, and what it must be for the error text.
    pub(crate) fn number<N: FromStr>(
        &self,
        key: &'static str,
        valid: &str,
    ) -> Result<Option<N>, BuiltinError> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.wrong(key, text, valid)),
        }
    }

    /// A number above 0.
    pub(crate) fn positive(&self, key: &'static str) -> Result<Option<usize>, BuiltinError> {
        const VALID: &str = "a number above 0";
        match self.number(key, VALID)? {
            Some(0) => Err(self.wrong(key, "0", VALID)),
            number => Ok(number),
        }
    }

    /// Threads to work with: 1 if none are asked for, and never more than any machine has use for.
    ///
    /// # Errors
    /// As [`Options::positive`].
    pub(crate) fn threads(&self) -> Result<usize, BuiltinError> {
        const THREADS_MAX: usize = 256;
        Ok(self.positive("threads")?.unwrap_or(1).min(THREADS_MAX))
    }

    /// The inputs that arguments name.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        let args = self.kernel.args().filter(|arg| arg.values == INPUT);
        args.filter_map(|arg| self.text(arg.key))
    }

    /// Takes the inputs that arguments name out of `inputs`: the others are what the kernel works on.
    pub(crate) fn without_named(&self, inputs: &[String]) -> Result<Vec<String>, BuiltinError> {
        let mut rest = inputs.to_vec();
        for arg in self.kernel.args().filter(|arg| arg.values == INPUT) {
            let Some(name) = self.text(arg.key) else {
                continue;
            };
            if !inputs.iter().any(|input| input == name) {
                let valid = format!("the name of one of the inputs: {}", inputs.join(", "));
                return Err(self.wrong(arg.key, name, &valid));
            }
            rest.retain(|input| input != name);
        }
        Ok(rest)
    }

    /// An argument that must be given.
    pub(crate) fn needed<V>(&self, key: &'static str, value: Option<V>) -> Result<V, BuiltinError> {
        value.ok_or_else(|| BuiltinError::Needed {
            kernel: self.kernel.name,
            key,
            valid: self.kernel.usage(),
        })
    }
}
