//! `decode`: the values of a variable out of the bytes of a file that hold them ([`crate::array::Held`]). Elements run it before the
//! kernel of a task whose input has a `mapper`, and it can be run as any other.

use std::io::{BufWriter, Write};

use super::BuiltinError;
use super::series::open;
use super::table::{Arg, Code, Kernel, Options};
use crate::array::{Held, HeldError};

/// This group's part of the table.
pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "decode",
    revision: 1,
    help: "the values of a variable that the bytes of the input hold, as inputs with a mapper are decoded",
    args: &[HOW],
    usage: None,
    prepare: None,
    code: Code::Whole(decode),
}];

const HOW: &[Arg] = &[Arg {
    key: "how",
    values: "JSON",
    default: "",
    help: "what is where and how it is decoded; see docs/formats.md",
}];

fn decode(options: &Options, inputs: &[String], out: &mut dyn Write) -> Result<(), BuiltinError> {
    let how = options.needed("how", options.text("how"))?;
    let held: Held = serde_json::from_str(how).map_err(|error| {
        options.wrong("how", &error.to_string(), "JSON as docs/formats.md has it")
    })?;
    let [input] = inputs else {
        let (kernel, count) = (options.kernel.name, inputs.len());
        return Err(BuiltinError::Inputs { kernel, count });
    };
    let mut out = BufWriter::with_capacity(1 << 20, out);
    held.decode(&open(input)?, &mut out)
        .map_err(|error| match error {
            HeldError::Write(error) => BuiltinError::Write(error),
            error => BuiltinError::Held(error.to_string()),
        })?;
    out.flush().map_err(BuiltinError::Write)
}
