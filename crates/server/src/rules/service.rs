//! gRPC service of rules. The service stores rules and wakes the driver in `server/src/rules/driver.rs`.

use super::batches;
use super::driver::RuleRunner;
use crate::access::Access;
use crate::attached;
use crate::clock;
use crate::namespace_service::refused;
use std::sync::Arc;
use tidemill_lang::rule::Rule;
use tidemill_lang::rule::hook::HookSpec;
use tidemill_lang::script::TextForm;
use tidemill_meta::rules::batches::{end_open, files_written};
use tidemill_meta::rules::runs::{self, MatchState};
use tidemill_meta::rules::{
    self, RULES_EACH_MAX, RULES_MAX, StoredRule, check_users, definitions, directory, jobs, walks,
};
use tidemill_meta::transaction::Tx;
use tidemill_meta::visibility::Visibility;
use tidemill_meta::{Caller, Connection, Fault, SqliteNames};
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Maximum length of a text with hooks, in bytes.
const HOOKS_BYTES_MAX: usize = 256 << 10;
/// Maximum number of rule runs in one answer.
const LOG_MAX: u32 = 10_000;

/// The gRPC service of rules.
#[derive(Clone, Debug)]
pub(crate) struct RuleService {
    pub(crate) rule_runner: RuleRunner,
    pub(crate) access: Arc<Access>,
}

impl RuleService {
    /// Waits until those files of a hook are sealed that mounts closed a moment ago.
    async fn settle_closed(&self, caller: &Caller, kept: &StoredRule) -> Result<(), Status> {
        let shared = self.names().shared();
        let written = self
            .names()
            .database()
            .read(|db| files_written(db, shared, i64::MAX));
        let mut written = written.map_err(|fault| refused(&fault))?;
        written.retain(|(_, path)| kept.rule.matches(path));
        let inodes: Vec<u64> = written.iter().map(|(ino, _)| *ino).collect();
        let unsettled = self.rule_runner.lease_recalls.unsettled(&inodes).await;
        let unsettled = unsettled.map_err(|fault| refused(&fault))?;
        written.retain(|(ino, _)| unsettled.contains(ino));
        if written.is_empty() {
            return Ok(());
        }
        let such = match self.readable(caller, &written)? {
            Some(path) => format!(", such as {path}"),
            None => String::new(),
        };
        Err(Status::unavailable(format!(
            "{} files of hook {} may be closed and are not sealed yet{such}: their mounts or nodes do not answer; \
             try again, see `tidemill status`",
            unsettled.len(),
            kept.rule.name
        )))
    }

    /// Returns the path of the first of these files that the caller may read; `None` if the caller may read none.
    fn readable(&self, caller: &Caller, files: &[(u64, String)]) -> Result<Option<String>, Status> {
        let mut viewer = caller.clone();
        if viewer.checked {
            // The Linux kernel of the mount's host knows the groups and has not reported them.
            viewer.groups = self.access.groups_of(viewer.uid);
        }
        let names = self.names();
        let first = names.database().read(|db| {
            let tx = Tx::new(db, names.shared(), &viewer, 0, clock::now_ns());
            readable(&tx, &viewer, files)
        });
        first.map_err(|fault| refused(&fault))
    }

    fn names(&self) -> &Arc<SqliteNames> {
        &self.rule_runner.names
    }

    /// Returns the rule with this name or number, if the caller may see the rule. If several rules have the same name, the caller's own
    /// rule is returned.
    fn own(&self, caller: &Caller, name: &str) -> Result<Arc<StoredRule>, Status> {
        let all = self.names().shared().rules.all();
        let number: Option<u64> = name.parse().ok();
        let called = |kept: &&Arc<StoredRule>| match number {
            Some(number) => kept.id == number,
            None => kept.rule.name == name,
        };
        let mut found: Vec<_> = all.iter().filter(called).collect();
        found.retain(|kept| self.may(caller, kept));
        found.sort_by_key(|kept| kept.owner.uid != caller.uid);
        match found.as_slice() {
            [] => Err(Status::not_found(format!(
                "you have no rule {name}; see `tidemill rule list`"
            ))),
            [one, other, ..] if one.owner.uid != caller.uid => {
                Err(Status::failed_precondition(format!(
                    "several users have a rule {name}: give its number, {} of user {} or {} of user {}",
                    one.id, one.owner.uid, other.id, other.owner.uid
                )))
            }
            [one, ..] => Ok(Arc::clone(one)),
        }
    }

    /// Lets the rules see all changes so far, so that an answer has the rule runs of files that were just closed.
    async fn settle(&self) {
        let names = self.names();
        loop {
            let shared = names.shared().clone();
            let take = move |db: &Connection| rules::take(db, &shared, clock::now_ns());
            // Without space for new rule runs, the answer has the earlier ones.
            let Ok(step) = names.database().write(take).await else {
                return;
            };
            step.committed(names.shared());
            if step.due {
                names.shared().rules.wake();
            }
            if !step.more {
                return;
            }
        }
    }

    fn may(&self, caller: &Caller, kept: &StoredRule) -> bool {
        self.access.is_administrator(caller.uid) || kept.owner.uid == caller.uid
    }

    fn shown(&self, kept: &StoredRule, whole: bool) -> Result<v1::Rule, Status> {
        let shown = self.names().database().read(|db| shown(db, kept, whole));
        shown.map_err(|fault| refused(&fault))
    }

    /// Returns the rule with this number in its present stored state.
    fn again(&self, id: u64) -> Result<v1::Rule, Status> {
        let all = self.names().shared().rules.all();
        let kept = all.iter().find(|kept| kept.id == id);
        let kept = kept.ok_or_else(|| Status::aborted("the rule was just removed"))?;
        self.shown(kept, true)
    }

    fn space(&self, caller: &Caller) -> Result<(), Status> {
        let all = self.names().shared().rules.all();
        let own = all
            .iter()
            .filter(|kept| kept.owner.uid == caller.uid)
            .count();
        let bounded = !self.access.is_administrator(caller.uid);
        if all.len() >= RULES_MAX || (bounded && own >= RULES_EACH_MAX) {
            return Err(Status::resource_exhausted(format!(
                "there are {} rules, {own} of them yours, and at most {RULES_MAX} are allowed, {RULES_EACH_MAX} of a user: remove some",
                all.len()
            )));
        }
        Ok(())
    }

    /// Reads a rule from a text, after names of remotes were replaced by the attached directories.
    fn read(&self, from: &str, text: &mut String) -> Result<Result<Rule, String>, Status> {
        let plain = attached::plain(self.names(), text);
        plain.map_err(|fault| refused(&fault))?;
        let mut rule = match Rule::read(source(from), text) {
            Ok(rule) => rule,
            Err(errors) => return Ok(Err(errors.to_string())),
        };
        if let Err(unknown) = check_users(source(from), &mut rule) {
            return Ok(Err(unknown));
        }
        let directory = format!("{}/", rule.directory().trim_end_matches('/'));
        let refusal = attached::refusal(self.names(), std::iter::once(directory.as_str()));
        Ok(match refusal.map_err(|fault| refused(&fault))? {
            Some(refusal) => Err(format!("{}: {refusal}", source(from))),
            None => Ok(rule),
        })
    }

    /// Creates the hooks in a text, or replaces hooks with the same names. A hook with the same text does not change. If any hook is invalid,
    /// none is created.
    async fn add_hooks(
        &self,
        caller: Caller,
        request: v1::AddRuleRequest,
    ) -> Result<v1::AddRuleReply, Status> {
        let mut reply = v1::AddRuleReply::default();
        let texts = match hook_texts(&request) {
            Ok(Some(texts)) => texts,
            Ok(None) => {
                reply.unfinished = true;
                return Ok(reply);
            }
            Err(why) => {
                reply.errors = lines(&why);
                return Ok(reply);
            }
        };
        let mut hooks = Vec::new();
        for (from, mut text) in texts {
            match self.read(&from, &mut text)? {
                Ok(rule) if rule.hook.is_none() => reply.errors.push(format!(
                    "{from}: the text is a rule without [hook]; create it with `tidemill rule create`"
                )),
                Ok(rule) => hooks.push((rule, text)),
                Err(errors) => reply.errors.extend(lines(&errors)),
            }
        }
        if !reply.errors.is_empty() {
            return Ok(reply);
        }
        for (rule, text) in hooks {
            let all = self.names().shared().rules.all();
            let unchanged = all.iter().any(|kept| {
                let own = kept.owner.uid == caller.uid && kept.rule.name == rule.name;
                own && kept.text == text
            });
            if unchanged {
                continue;
            }
            let hook = v1::AddRuleRequest {
                text,
                source: request.source.clone(),
                replace: true,
                ..v1::AddRuleRequest::default()
            };
            reply.rule = Some(self.put(caller.clone(), rule, hook).await?);
        }
        Ok(reply)
    }

    async fn put(
        &self,
        caller: Caller,
        rule: Rule,
        request: v1::AddRuleRequest,
    ) -> Result<v1::Rule, Status> {
        let all = self.names().shared().rules.all();
        let same =
            |kept: &&Arc<StoredRule>| kept.owner.uid == caller.uid && kept.rule.name == rule.name;
        let before = all.iter().find(same).cloned();
        match &before {
            Some(kept) if !request.replace => {
                return Err(Status::already_exists(format!(
                    "you have a rule {} already, number {}: replace it with --replace, or give another name",
                    kept.rule.name, kept.id
                )));
            }
            None => self.space(&caller)?,
            Some(kept) if kept.directory != 0 => {
                return Err(Status::failed_precondition(format!(
                    "rule {} is the attribute user.tidemill.rule of {}: set the attribute again",
                    kept.rule.name, kept.rule.workdir
                )));
            }
            Some(_) => {}
        }
        let now = clock::now_ns();
        let kept = StoredRule {
            id: 0,
            owner: caller,
            revision: before.as_ref().map_or(1, |kept| kept.revision + 1),
            for_all: request.for_all,
            paused: before.as_ref().is_some_and(|kept| kept.paused),
            source: request.source,
            text: request.text,
            changed: now,
            directory: 0,
            rule,
        };
        let before = before.map(|kept| kept.id);
        let put = put(self.names(), kept, before, request.existing).await;
        self.again(put.map_err(|fault| refused(&fault))?)
    }
}

/// Returns the path of the first file that the caller may read, as [`RuleService::readable`] does.
fn readable(
    tx: &Tx<'_>,
    viewer: &Caller,
    files: &[(u64, String)],
) -> Result<Option<String>, Fault> {
    let mut visibility = Visibility::new(tx, viewer);
    for (ino, path) in files {
        if visibility.file(*ino)?.is_some_and(|seen| seen.allowed) {
            return Ok(Some(path.clone()));
        }
    }
    Ok(None)
}

/// Changes the rules in the database, and reads all rules again.
async fn write<T: Send + 'static>(
    names: &SqliteNames,
    work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let shared = names.shared().clone();
    let work = move |db: &Connection| {
        let (root, now) = (Caller::root(), clock::now_ns());
        let tx = Tx::new(db, &shared, &root, 0, now);
        tx.settle_rules()?;
        let done = work(db)?;
        tx.reload_rules()?;
        Ok(done)
    };
    let written = names.database().write(work).await?;
    names.shared().rules.wake();
    Ok(written)
}

/// Stores a new rule, or replaces the rule with the number `before`. Returns the stored rule's number.
pub(super) async fn put(
    names: &SqliteNames,
    kept: StoredRule,
    before: Option<u64>,
    existing: bool,
) -> Result<u64, Fault> {
    let shared = names.shared().clone();
    let work = move |db: &Connection| {
        let id = definitions::put(db, &kept, before)?;
        if existing {
            walks::begin(db, &shared, id, &kept.rule.directory(), kept.changed)?;
        }
        Ok(id)
    };
    write(names, work).await
}

/// Removes a rule, with its remaining rule runs.
pub(super) async fn remove(rule_runner: &RuleRunner, kept: Arc<StoredRule>) -> Result<(), Fault> {
    let remove = move |db: &Connection| directory::remove(db, &kept);
    write(&rule_runner.names, remove).await?;
    rule_runner.forget().await
}

/// Queues failed runs of a rule again: all failed runs, or those of one path. Returns the number of queued runs.
pub(super) async fn retry(names: &SqliteNames, id: u64, path: String) -> Result<u64, Fault> {
    let (shared, now) = (names.shared().clone(), clock::now_ns());
    let retry =
        move |db: &Connection| Tx::new(db, &shared, &Caller::root(), 0, now).retry_rule(id, &path);
    let rule_runs = names.database().write(retry).await?;
    names.shared().rules.wake();
    Ok(rule_runs)
}

/// Closes the open batch of a hook. Returns the batch's number; `None` if no batch is open.
pub(super) async fn end_batch(names: &SqliteNames, id: u64) -> Result<Option<u64>, Fault> {
    let shared = names.shared().clone();
    let end = move |db: &Connection| {
        rules::take_all(db, &shared, clock::now_ns())?;
        end_open(db, id)
    };
    let ended = names.database().write(end).await?;
    names.shared().rules.wake();
    Ok(ended)
}

/// Returns a rule in the form for clients; with its text and the counts of its runs if `whole` is set.
fn shown(db: &Connection, kept: &StoredRule, whole: bool) -> Result<v1::Rule, Fault> {
    let mut rule = v1::Rule {
        rule: kept.id,
        name: kept.rule.name.clone(),
        uid: kept.owner.uid,
        revision: kept.revision,
        paused: kept.paused,
        for_all: kept.for_all,
        workdir: kept.rule.workdir.clone(),
        pattern: kept.rule.pattern.text().to_owned(),
        changed: kept.changed,
        of_directory: kept.directory != 0,
        hook: batches::shown(db, kept, whole)?,
        jobs: jobs::count_open(db, kept.id)?,
        ..v1::Rule::default()
    };
    if whole {
        rule.text.clone_from(&kept.text);
        rule.walking = walks::any(db, kept.id)?;
        rule.rule_runs.extend(runs::count_by_state(db, kept.id)?);
    }
    Ok(rule)
}

/// Text of a rule, and the name of the text in errors.
type RuleText = (String, String);

/// Returns the texts of the rules for the hooks in a text; `None` if the text ends within a hook. Any line of a hook in TOML may be its last,
/// so an unfinished text in TOML has no hooks yet.
fn hook_texts(request: &v1::AddRuleRequest) -> Result<Option<Vec<RuleText>>, String> {
    if request.text.len() > HOOKS_BYTES_MAX {
        return Err(format!(
            "the text is longer than {HOOKS_BYTES_MAX} bytes; split it"
        ));
    }
    if TextForm::of(&request.text) == TextForm::Toml {
        let whole = (request.source.clone(), request.text.clone());
        return Ok((!request.unfinished).then(|| vec![whole]));
    }
    match HookSpec::read_all(&request.text) {
        Err(error) if error.unfinished && request.unfinished => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(specs) => {
            let texts = specs
                .into_iter()
                .map(|spec| (spec.pattern.clone(), spec.rule_text()));
            Ok(Some(texts.collect()))
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn source(given: &str) -> &str {
    if given.is_empty() { "rule" } else { given }
}

/// Returns the effect that a rule would have on a path.
fn tested(rule: &Rule, revision: u64, path: &str) -> v1::TestRuleReply {
    let absolute = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{}/{path}", rule.workdir.trim_end_matches('/')),
    };
    let below = absolute.strip_prefix(rule.workdir.trim_end_matches('/'));
    let captures = below.and_then(|below| rule.pattern.captures(below.strip_prefix('/')?));
    let Some(captures) = captures else {
        let why = format!(
            "{absolute} does not match {} below {}",
            rule.pattern.text(),
            rule.workdir
        );
        return v1::TestRuleReply {
            why,
            ..v1::TestRuleReply::default()
        };
    };
    let name = format!("{}@{revision}-0", rule.name);
    let task = (name, 0, vec![absolute.as_str()]);
    let (script, why) = match rule.script(revision, &[task]) {
        Ok(script) => (script, String::new()),
        Err(error) => (String::new(), error.to_string()),
    };
    v1::TestRuleReply {
        matches: why.is_empty(),
        why,
        captures: captures.into_iter().collect(),
        script,
        ..v1::TestRuleReply::default()
    }
}

#[tonic::async_trait]
impl v1::rules_server::Rules for RuleService {
    async fn add(
        &self,
        request: Request<v1::AddRuleRequest>,
    ) -> Result<Response<v1::AddRuleReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        let mut request = request.into_inner();
        if request.for_all && !self.access.is_administrator(caller.uid) {
            return Err(Status::permission_denied(
                "only administrators may make rules for the files of all users",
            ));
        }
        if request.hooks {
            return self.add_hooks(caller, request).await.map(Response::new);
        }
        let mut reply = v1::AddRuleReply::default();
        match self.read(&request.source, &mut request.text)? {
            // Such a hook would combine files that not all users may read.
            Ok(rule) if request.for_all && rule.hook.is_some() => {
                return Err(Status::invalid_argument(
                    "a hook is for the files that its owner may read: omit --for-all",
                ));
            }
            Ok(rule) => reply.rule = Some(self.put(caller, rule, request).await?),
            Err(errors) => reply.errors = lines(&errors),
        }
        Ok(Response::new(reply))
    }

    async fn list(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::ListRulesReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        self.settle().await;
        let name = &request.get_ref().name;
        let rules = if name.is_empty() {
            let all = self.names().shared().rules.all();
            let seen = all.iter().filter(|kept| self.may(&caller, kept));
            seen.map(|kept| self.shown(kept, false))
                .collect::<Result<_, _>>()?
        } else {
            vec![self.shown(&*self.own(&caller, name)?, true)?]
        };
        Ok(Response::new(v1::ListRulesReply { rules }))
    }

    async fn pause(
        &self,
        request: Request<v1::PauseRuleRequest>,
    ) -> Result<Response<v1::Rule>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        self.settle().await;
        let v1::PauseRuleRequest { name, paused, .. } = request.into_inner();
        let id = self.own(&caller, &name)?.id;
        let paused = write(self.names(), move |db| definitions::pause(db, id, paused)).await;
        paused.map_err(|fault| refused(&fault))?;
        self.again(id).map(Response::new)
    }

    async fn remove(
        &self,
        request: Request<v1::RuleRequest>,
    ) -> Result<Response<v1::Rule>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        self.settle().await;
        let kept = self.own(&caller, &request.get_ref().name)?;
        let shown = self.shown(&kept, true)?;
        let removed = remove(&self.rule_runner, kept).await;
        removed.map_err(|fault| refused(&fault))?;
        Ok(Response::new(shown))
    }

    async fn test(
        &self,
        request: Request<v1::TestRuleRequest>,
    ) -> Result<Response<v1::TestRuleReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        let mut request = request.into_inner();
        let reply = if request.name.is_empty() {
            match self.read(&request.source, &mut request.text)? {
                Ok(rule) => tested(&rule, 1, &request.path),
                Err(errors) => v1::TestRuleReply {
                    errors: lines(&errors),
                    ..v1::TestRuleReply::default()
                },
            }
        } else {
            let kept = self.own(&caller, &request.name)?;
            tested(&kept.rule, kept.revision, &request.path)
        };
        Ok(Response::new(reply))
    }

    async fn log(
        &self,
        request: Request<v1::RuleLogRequest>,
    ) -> Result<Response<v1::RuleLogReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        self.settle().await;
        let request = request.into_inner();
        let id = self.own(&caller, &request.name)?.id;
        let known = |name: &String| {
            MatchState::called(name).ok_or_else(|| {
                let all = MatchState::ALL.map(|(_, name)| name).join(", ");
                Status::invalid_argument(format!(
                    "state {name} does not exist; the states are {all}"
                ))
            })
        };
        let states = request
            .states
            .iter()
            .map(known)
            .collect::<Result<Vec<_>, _>>()?;
        let limit = match request.limit {
            0 => LOG_MAX,
            limit => limit.min(LOG_MAX),
        };
        let log = self
            .names()
            .database()
            .read(|db| runs::log(db, id, (request.before, limit), &states));
        let rule_runs = log.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::RuleLogReply { rule_runs }))
    }

    async fn retry(
        &self,
        request: Request<v1::RetryRuleRequest>,
    ) -> Result<Response<v1::RetryRuleReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        self.settle().await;
        let v1::RetryRuleRequest { name, path, .. } = request.into_inner();
        let id = self.own(&caller, &name)?.id;
        let rule_runs = retry(self.names(), id, path).await;
        let rule_runs = rule_runs.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::RetryRuleReply { rule_runs }))
    }

    async fn end_batch(
        &self,
        request: Request<v1::RuleRequest>,
    ) -> Result<Response<v1::EndBatchReply>, Status> {
        let credentials = request.get_ref().credentials.clone();
        let caller = self.access.caller(&request, credentials.as_ref())?;
        let kept = self.own(&caller, &request.get_ref().name)?;
        let (id, name) = (kept.id, &kept.rule.name);
        let hook = kept.rule.hook.as_ref();
        if hook.is_none_or(|hook| hook.batches.is_none()) {
            return Err(Status::failed_precondition(format!(
                "{name} reduces nothing, so it has no batches"
            )));
        }
        self.settle_closed(&caller, &kept).await?;
        let ended = end_batch(self.names(), id).await;
        let ended = ended.map_err(|fault| refused(&fault))?;
        let batch = ended.ok_or_else(|| {
            Status::failed_precondition(format!(
                "no file has arrived for hook {name} since its last batch; see `tidemill rule show {name}`"
            ))
        })?;
        Ok(Response::new(v1::EndBatchReply { batch }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_error_contains_paths_of_unsealed_files_only_for_readers() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let shared = names.shared().clone();
        let named = names.database().write_blocking(move |db| {
            let root = Caller::root();
            let mut tx = Tx::new(db, &shared, &root, 0, 1);
            let mut make = |parent, (kind, mode): (v1::Kind, u32)| {
                let ino = tidemill_meta::ids::reserve(db, "inode", 1)?;
                let op = v1::Create {
                    parent,
                    name: b"x".to_vec(),
                    kind: kind.into(),
                    mode,
                    ino,
                    uid: 8,
                    gid: 8,
                    ..v1::Create::default()
                };
                tx.create(&op).map(|_| ino)
            };
            let private = make(1, (v1::Kind::Directory, 0o700))?;
            let file = make(private, (v1::Kind::File, 0o644))?;
            let files = [(file, "/x/x".to_owned())];
            let named = [7, 8].map(|uid| {
                let viewer = Caller {
                    uid,
                    gid: uid,
                    ..Caller::default()
                };
                readable(&Tx::new(db, &shared, &viewer, 0, 1), &viewer, &files)
            });
            named.into_iter().collect::<Result<Vec<_>, _>>()
        });
        assert_eq!(named.unwrap(), [None, Some("/x/x".to_owned())]);
    }
}
