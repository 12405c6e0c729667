//! Table of built-in kernels: their names, arguments and code. Lists, help and error texts are generated from the table.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;

use super::BuiltinError;
use crate::fold::{Fold, Stream};

/// Value of an argument that names an input; this input is not part of the kernel's data.
pub(crate) const INPUT: &str = "INPUT";

/// Argument of a built-in kernel, given as `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelArgument {
    /// Name of the argument.
    pub key: &'static str,
    /// Valid values of the argument: choices with `|` between them, or a word in capitals for a free value.
    pub values: &'static str,
    /// Default value of the argument; empty if the argument is optional and has no default.
    pub default: &'static str,
    /// Purpose of the argument, in one line.
    pub help: &'static str,
}

/// Built-in kernel.
#[derive(Debug)]
pub struct BuiltinKernel {
    /// Name of the kernel.
    pub name: &'static str,
    /// Revision of the kernel, which increases with each change of the results.
    pub revision: u32,
    /// Purpose of the kernel, in one line.
    pub help: &'static str,
    /// Arguments of the kernel, in groups that kernels share.
    pub(crate) args: &'static [&'static [KernelArgument]],
    /// Usage of the kernel's arguments that are not `key=value`.
    pub(crate) usage: Option<ArgumentUsage>,
    pub(crate) code: KernelConstructor,
    /// Function that derives missing arguments from the inputs, before the kernel is made; an input in pieces does not allow this.
    pub(crate) prepare: Option<Prepare>,
}

/// Usage of arguments that are not `key=value`.
#[derive(Debug)]
pub(crate) struct ArgumentUsage {
    /// Usage text of the arguments, in one line.
    pub(crate) text: &'static str,
    /// Function that checks the arguments.
    pub(crate) check: fn(&KernelOptions) -> Result<(), BuiltinError>,
}

/// Argument `threads=` of all folds: by their merge invariance the result is the same for any number of threads.
const THREADS: &[KernelArgument] = &[KernelArgument {
    key: "threads",
    values: "COUNT",
    default: "1",
    help: "threads that share the input (unless it is text of numbers); the result does not depend on them",
}];

/// Function that derives missing arguments from the inputs; see [`BuiltinKernel::prepare`].
pub(crate) type Prepare = fn(&mut KernelOptions, &[String]) -> Result<(), BuiltinError>;

impl BuiltinKernel {
    /// Returns all arguments of the kernel that are `key=value`.
    pub fn args(&self) -> impl Iterator<Item = &'static KernelArgument> {
        let threads: &[KernelArgument] = if self.is_fold() { THREADS } else { &[] };
        self.args.iter().copied().flatten().chain(threads)
    }

    /// Returns whether the kernel accepts its input in any pieces, and its partial states can be merged (with some arguments at least).
    #[must_use]
    pub fn is_fold(&self) -> bool {
        matches!(
            self.code,
            KernelConstructor::Fold(..) | KernelConstructor::Either(..)
        )
    }

    /// Returns whether the kernel writes output as input arrives, so that kernels can be chained (with some arguments at least).
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(
            self.code,
            KernelConstructor::Stream(..) | KernelConstructor::Either(..)
        )
    }

    /// Returns the arguments of the kernel in one line, such as `dtype=TYPE, out=text|f64`.
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

/// Kind of input of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldInput {
    /// All files in order are one series of values; text is converted to binary first.
    Values,
    /// Each file is a separate sequence of bytes.
    Bytes,
}

/// Function that makes a kernel from its arguments, or that runs the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KernelConstructor {
    Fold(
        FoldInput,
        fn(&KernelOptions) -> Result<Box<dyn Fold>, BuiltinError>,
    ),
    Stream(
        FoldInput,
        fn(&KernelOptions) -> Result<Box<dyn Stream>, BuiltinError>,
    ),
    /// Makes a fold or a stream, depending on the arguments.
    Either(
        FoldInput,
        fn(&KernelOptions) -> Result<ReadyKernel, BuiltinError>,
    ),
    Whole(WholeKernel),
}

/// Function that runs a kernel which needs its whole input.
pub(crate) type WholeKernel =
    fn(&KernelOptions, &[String], &mut dyn Write) -> Result<(), BuiltinError>;

/// Kernel that is ready to run.
#[derive(Debug)]
pub(crate) enum ReadyKernel {
    Fold(Box<dyn Fold>),
    Stream(Box<dyn Stream>),
    Whole(WholeKernel),
}

impl KernelConstructor {
    /// Makes the kernel from its arguments, and returns the kind of its input.
    pub(crate) fn make(
        self,
        options: &KernelOptions,
    ) -> Result<(FoldInput, ReadyKernel), BuiltinError> {
        Ok(match self {
            Self::Fold(input, make) => (input, ReadyKernel::Fold(make(options)?)),
            Self::Stream(input, make) => (input, ReadyKernel::Stream(make(options)?)),
            Self::Either(input, make) => (input, make(options)?),
            Self::Whole(run) => (FoldInput::Bytes, ReadyKernel::Whole(run)),
        })
    }
}

/// Arguments of one run of a kernel.
#[derive(Debug)]
pub(crate) struct KernelOptions {
    pub(crate) kernel: &'static BuiltinKernel,
    given: BTreeMap<&'static str, String>,
    /// All arguments as given, for kernels with arguments that are not `key=value`.
    pub(crate) raw: Vec<String>,
}

impl KernelOptions {
    /// Parses arguments, and checks their names and choices.
    pub(crate) fn parse(
        kernel: &'static BuiltinKernel,
        args: &[String],
    ) -> Result<Self, BuiltinError> {
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

    /// Returns the error for an argument that the kernel does not know.
    pub(crate) fn unknown(&self, arg: &str) -> BuiltinError {
        BuiltinError::Argument {
            kernel: self.kernel.name,
            arg: arg.to_owned(),
            valid: self.kernel.usage(),
        }
    }

    /// Returns the error for an argument with an invalid value.
    pub(crate) fn wrong(&self, key: &'static str, value: &str, valid: &str) -> BuiltinError {
        BuiltinError::Value {
            key,
            value: value.to_owned(),
            valid: valid.to_owned(),
        }
    }

    /// Sets the value of an argument that was not given.
    pub(crate) fn set(&mut self, key: &'static str, value: String) {
        self.given.entry(key).or_insert(value);
    }

    /// Returns the given value of an argument, or its default; `None` if the value is empty.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        let default = || Some(self.kernel.args().find(|arg| arg.key == key)?.default);
        let given = self.given.get(key).map(String::as_str);
        given.or_else(default).filter(|text| !text.is_empty())
    }

    /// Returns whether the argument `key` has the value `value`.
    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.text(key) == Some(value)
    }

    /// Returns the value of an argument as a number; `valid` describes valid numbers in the error.
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

    /// Returns the value of an argument as a number above 0.
    pub(crate) fn positive(&self, key: &'static str) -> Result<Option<usize>, BuiltinError> {
        const VALID: &str = "a number above 0";
        match self.number(key, VALID)? {
            Some(0) => Err(self.wrong(key, "0", VALID)),
            number => Ok(number),
        }
    }

    /// Returns the number of threads: 1 by default, and never more than any machine can use.
    ///
    /// # Errors
    /// Errors of [`KernelOptions::positive`].
    pub(crate) fn threads(&self) -> Result<usize, BuiltinError> {
        const THREADS_MAX: usize = 256;
        Ok(self.positive("threads")?.unwrap_or(1).min(THREADS_MAX))
    }

    /// Returns the inputs that arguments of the kernel name.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        let args = self.kernel.args().filter(|arg| arg.values == INPUT);
        args.filter_map(|arg| self.text(arg.key))
    }

    /// Returns `inputs` without the inputs that arguments name: the remaining inputs are the kernel's data.
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

    /// Returns the value of a required argument.
    pub(crate) fn needed<V>(&self, key: &'static str, value: Option<V>) -> Result<V, BuiltinError> {
        value.ok_or_else(|| BuiltinError::Needed {
            kernel: self.kernel.name,
            key,
            valid: self.kernel.usage(),
        })
    }
}
