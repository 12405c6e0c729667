//! `tidemill stripe`: how new files below a folder are spread over elements.

use crate::context::{Context, credentials};
use crate::files;
use crate::output::Said;
use std::process::ExitCode;
use tidemill_client::{Error, Server};
use tidemill_core::layout::Stripes;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

const EXAMPLES: &str = "Examples:
  tidemill stripe /big 1MiB        new files below /big: 1 MiB to each element in turn
  tidemill stripe /big 4MiB,8      to 8 elements each
  tidemill stripe /big off         new files are whole again
  tidemill stripe /big             how it is
  tidemill layout /big/file        where the bytes of a file are

A file that is there stays as it is until it is written again.";

/// The folder attribute.
const NAME: &[u8] = b"user.tidemill.stripe";

/// Spread new files below a folder over elements
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A folder in the array
    #[arg(value_name = "FOLDER")]
    path: String,
    /// Bytes of a stripe, a multiple of 4 KiB (bytes, KiB, MiB, GiB), and how many elements [default: all]; `off`: whole files
    #[arg(value_name = "UNIT[,WIDTH]|off", value_parser = stripes)]
    stripes: Option<String>,
}

fn stripes(text: &str) -> Result<String, String> {
    if text == "off" {
        return Ok(text.into());
    }
    let stripes: Result<Stripes, _> = text.parse();
    let stripes = stripes.map_err(|error| error.to_string())?;
    Ok(stripes.to_string())
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let path = files::path(&args.path)?;
    let found = files::resolve(&server, &path, true).await?;
    let attr = found.attr.unwrap_or_default();
    if let Some(stripes) = args.stripes {
        anyhow::ensure!(
            attr.kind() == Kind::Directory,
            "{path} is a file, and stays as it lies; new files of a folder are striped: `tidemill stripe FOLDER {stripes}`, or \
             `tidemill put --stripe {stripes} FILE {path}` to write it anew"
        );
        let set = v1::SetXattr {
            ino: attr.ino,
            name: NAME.to_vec(),
            value: stripes.into_bytes(),
            ..v1::SetXattr::default()
        };
        server.one(&credentials(), Op::SetXattr(set)).await?;
    }
    let text = match said(&server, attr.ino).await? {
        Some(said) => said,
        None => "whole".into(),
    };
    let json = serde_json::json!({ "path": path, "stripe": text });
    context
        .output
        .show(&Said::new(format!("{path}: {text}"), json))?;
    Ok(ExitCode::SUCCESS)
}

async fn said(server: &Server, ino: u64) -> anyhow::Result<Option<String>> {
    let get = v1::GetXattr {
        ino,
        name: NAME.to_vec(),
    };
    match server.one(&credentials(), Op::GetXattr(get)).await {
        Ok(Answer::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(&bytes.value).into_owned())),
        Ok(_) => Err(Error::Answer("GetXattr").into()),
        Err(error) if error.is(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
