//! `.tidemill/hooks`: hooks in the paper's own format (Active Burst-Buffer, Fig. 4). A program that writes to the file creates hooks, or
//! replaces hooks with the same names, as soon as sections are complete. The file also accepts one hook in TOML when it is closed. A
//! program that reads the file sees its user's hooks. The mount sends hooks to the server (next: `server/src`).

use super::submit::OpenerProcess;
use super::{OpenSpecial, plain_credentials};
use crate::error::Error;
use crate::fs::{Caller, Fs};
use rustix::io::Errno;
use std::fmt::Write as _;
use tidemill_lang::rule::hook::{HookSpec, InputAction, On};
use tidemill_lang::rule::{MAX_RULE_BYTES, Rule};
use tidemill_lang::script::TextForm;
use tidemill_wire::v1;

/// Maximum length of the written text, in bytes.
const TEXT_BYTES_MAX: usize = 4 * MAX_RULE_BYTES;
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
        self.take_hooks((open, opener), &input[..whole], false)
    }

    /// Handles the last section of the text, because the file is closed.
    pub(super) fn control_hooks_end(
        &self,
        open: &OpenSpecial,
        opener: &OpenerProcess,
    ) -> Result<(), Error> {
        let input = open.input.lock();
        self.take_hooks((open, opener), &input, true)
    }

    fn take_hooks(
        &self,
        (open, opener): (&OpenSpecial, &OpenerProcess),
        text: &[u8],
        last: bool,
    ) -> Result<(), Error> {
        let text = String::from_utf8_lossy(text);
        let mut made = open.hooks.lock();
        let added = if TextForm::of(&text) == TextForm::Toml {
            // Any line may be the last: only the close of the file ends the text.
            if !last {
                return Ok(());
            }
            self.add_toml(opener, &text, &mut made)
        } else {
            match HookSpec::read_all(&text) {
                Err(error) if error.unfinished && !last => return Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(specs) => self.add_hooks(opener, specs, &mut made),
            }
        };
        let mut errors = self.control.errors.lock();
        let uid = opener.caller().uid;
        match added {
            Ok(0) => Ok(()),
            Ok(_) => {
                errors.remove(&uid);
                Ok(())
            }
            Err(why) => {
                errors.insert(uid, why + "\n");
                Err(Errno::INVAL.into())
            }
        }
    }

    /// Creates the hooks of a text that were not created yet, if all hooks are valid. Returns the number of new hooks.
    fn add_hooks(
        &self,
        opener: &OpenerProcess,
        specs: Vec<HookSpec>,
        made: &mut Vec<HookSpec>,
    ) -> Result<usize, String> {
        let new: Vec<HookSpec> = specs
            .into_iter()
            .filter(|spec| !made.contains(spec))
            .collect();
        for spec in &new {
            Rule::read(&spec.pattern, &spec.rule_text()).map_err(|errors| errors.to_string())?;
        }
        let count = new.len();
        for spec in new {
            self.add_text(opener, spec.rule_text())?;
            made.push(spec);
        }
        Ok(count)
    }

    /// Creates the hook of a text in TOML, if it was not created yet. Returns the number of new hooks.
    fn add_toml(
        &self,
        opener: &OpenerProcess,
        text: &str,
        made: &mut Vec<HookSpec>,
    ) -> Result<usize, String> {
        let rule = Rule::read(SOURCE, text).map_err(|errors| errors.to_string())?;
        let hook = rule.hook.ok_or_else(|| {
            format!(
                "{SOURCE}: the text is a rule without [hook]; create it with `tidemill rule create`"
            )
        })?;
        if made.contains(&hook.spec) {
            return Ok(0);
        }
        self.add_text(opener, text.to_owned())?;
        made.push(hook.spec);
        Ok(1)
    }

    /// Creates the hook of a rule's text, or replaces the hook with the same name.
    fn add_text(&self, opener: &OpenerProcess, text: String) -> Result<(), String> {
        let request = v1::AddRuleRequest {
            credentials: Some(opener.credentials()),
            text,
            source: SOURCE.into(),
            replace: true,
            ..v1::AddRuleRequest::default()
        };
        let server = &self.backend.server;
        let added = self.backend.ask_once(async {
            let reply = server.rules().add(request).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        });
        let errors = added.map_err(|error| error.to_string())?.errors;
        match errors.is_empty() {
            true => Ok(()),
            false => Err(errors.join("\n")),
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
        for rule in rules.filter(|rule| rule.uid == caller.uid) {
            if let Some(hook) = rule.hook {
                let _ = write!(text, "{}", spec(rule.name, hook));
            }
        }
        Ok(text)
    }
}

fn spec(name: String, hook: v1::Hook) -> HookSpec {
    HookSpec {
        name,
        pattern: hook.pattern,
        map: hook.map,
        output: hook.output,
        reduce: hook.reduce,
        parts: hook.parts,
        group: hook.group,
        marker: hook.marker,
        inputs: InputAction::called(&hook.inputs).unwrap_or_default(),
        on: On::called(&hook.on).unwrap_or_default(),
        time: hook.time,
        size: hook.size,
        mpi: hook.mpi,
    }
}
