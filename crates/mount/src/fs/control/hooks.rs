//! `.tidemill/hooks`: hooks in the paper's own format (Active Burst-Buffer, Fig. 4). A program that writes to the file creates hooks, or
//! replaces hooks with the same names, as soon as sections are complete. The file also accepts one hook in TOML when it is closed. A
//! program that reads the file sees its user's hooks. The mount sends hooks to the server (next: `server/src`).

use super::submit::OpenerProcess;
use super::{OpenSpecial, plain_credentials};
use crate::error::Error;
use crate::fs::{Caller, Fs};
use rustix::io::Errno;
use tidemill_wire::v1;

/// Maximum length of the written text, in bytes.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Name of the text in error messages.
const SOURCE: &str = ".tidemill/hooks";

impl Fs {
    /// Handles text written to `hooks`. Returns the first error, and stores it for `last-error`.
    pub(super) fn control_hooks(
        &self,
        (open, opener): (&OpenSpecial, &OpenerProcess),
        bytes: &[u8],
    ) -> Result<(), Error> {
        let mut input = open.input.lock();
        if input.len() + bytes.len() > TEXT_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        input.extend_from_slice(bytes);
        // A line may arrive in several writes.
        let whole = input.iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        self.send_hooks((open, opener), &input[..whole], false)
    }

    /// Handles the last section of the text, because the file is closed.
    pub(super) fn control_hooks_end(
        &self,
        open: &OpenSpecial,
        opener: &OpenerProcess,
    ) -> Result<(), Error> {
        let input = open.input.lock();
        if *open.complete.lock() == input.len() {
            return Ok(());
        }
        self.send_hooks((open, opener), &input, true)
    }

    /// Sends the text to the server, which creates its hooks or replaces hooks with the same names. Unless the text is `whole`, a section
    /// without its end is no error.
    fn send_hooks(
        &self,
        (open, opener): (&OpenSpecial, &OpenerProcess),
        text: &[u8],
        whole: bool,
    ) -> Result<(), Error> {
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        let request = v1::AddRuleRequest {
            credentials: Some(opener.credentials()),
            text: String::from_utf8_lossy(text).into_owned(),
            source: SOURCE.into(),
            hooks: true,
            unfinished: !whole,
            ..v1::AddRuleRequest::default()
        };
        let server = &self.backend.server;
        let added = self.backend.ask_once(async {
            let reply = server.rules().add(request).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        });
        let added = match added {
            Ok(reply) if reply.errors.is_empty() => {
                if !reply.unfinished {
                    *open.complete.lock() = text.len();
                }
                Ok(reply.rule.is_some())
            }
            Ok(reply) => Err(reply.errors.join("\n")),
            Err(error) => Err(error.to_string()),
        };
        let mut errors = self.control.errors.lock();
        let uid = opener.caller().uid;
        match added {
            Ok(false) => Ok(()),
            Ok(true) => {
                errors.remove(&uid);
                Ok(())
            }
            Err(why) => {
                errors.insert(uid, why + "\n");
                Err(Errno::INVAL.into())
            }
        }
    }

    /// Returns the text of a user's hooks, which reads of `hooks` return.
    pub(super) fn hooks_text(&self, caller: Caller) -> Result<String, Error> {
        let request = v1::ListRulesRequest {
            credentials: Some(plain_credentials(caller.uid)),
            name: String::new(),
        };
        let server = &self.backend.server;
        let ask = || async {
            let reply = server.rules().list(request.clone()).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        };
        let mut text = String::new();
        let rules = self.backend.ask_server(ask)?.rules.into_iter();
        for hook in rules
            .filter(|rule| rule.uid == caller.uid)
            .filter_map(|rule| rule.hook)
        {
            text.push_str(&hook.section);
        }
        Ok(text)
    }
}
