//! Tokens other than the cluster's own token. A user's token lets its bearer act only as that user. Other tokens each belong to one host or
//! daemon of the cluster, so that each token can be revoked separately.
//!
//! The server stores the tokens in the file `tokens` in its directory, each as the hash of its secret, so a reader of the file can't use
//! the tokens. All tokens are in memory, so a lookup needs no input/output. A revoked token is rejected immediately, and the server closes
//! open connections of the token's bearer.

use crate::access::new_token;
use crate::ca::write_private;
use crate::clock;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tidemill_wire::v1;
use tokio::sync::watch;

/// Version of the format of the file `tokens`.
const VERSION: u32 = 1;

/// Maximum number of tokens, not counting expired tokens.
const TOKENS_MAX: usize = 10_000;
/// Maximum number of tokens that each user may create for the user's own account.
const OWN_MAX: usize = 100;

/// Maximum length of a note in bytes.
const NOTE_BYTES_MAX: usize = 200;

/// Time in nanoseconds for which an expired token is still listed, unless its place is needed.
const EXPIRED_KEPT_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// Reason why tokens can't be stored, or a token can't be created.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file with the tokens can't be read or written.
    #[error("{path}: {reason}")]
    File {
        /// Path of the file with the tokens.
        path: String,
        /// Error of the operating system.
        reason: std::io::Error,
    },
    /// The content of the file with the tokens is invalid.
    #[error(
        "{path}: the file is not a list of tokens of this release ({reason}); restore it from a backup, or remove it: all tokens but the cluster's are then revoked"
    )]
    Broken {
        /// Path of the file with the tokens.
        path: String,
        /// Reason why the content is invalid.
        reason: String,
    },
    /// The maximum number of tokens is reached.
    #[error("there are {0} tokens already: revoke some")]
    Full(usize),
    /// The note of a new token is too long or contains control characters.
    #[error(
        "a note has at most {NOTE_BYTES_MAX} bytes, without line ends and other control characters"
    )]
    Note,
    /// The expiry time of a new token is in the past.
    #[error("the token would have expired already")]
    Expired,
}

/// Stored data of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRecord {
    token: u64,
    /// BLAKE3 hash of the secret, in hexadecimal.
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(default)]
    read_only: bool,
    created: i64,
    #[serde(default)]
    expires: i64,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct TokenFile {
    version: u32,
    /// Number that the next token gets.
    next: u64,
    tokens: Vec<TokenRecord>,
}

/// A valid token.
#[derive(Debug)]
pub(crate) struct Token {
    record: TokenRecord,
    used: AtomicI64,
    revoked: watch::Sender<bool>,
}

/// All tokens except the cluster's own token.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    /// Number that the next token gets. The lock is held while a token is created or revoked, until the change is in the file. Lookups do
    /// not wait for this lock.
    next: Mutex<u64>,
    by_hash: RwLock<ByHash>,
}

type ByHash = HashMap<String, Arc<Token>>;

/// Properties of a new token.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewToken {
    pub(crate) uid: Option<u32>,
    pub(crate) read_only: bool,
    pub(crate) expires: i64,
    pub(crate) note: String,
}

impl Token {
    /// Returns the user of the token; `None` if the bearer may act for any user.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.record.uid
    }

    /// Whether the bearer of the token may only read.
    pub(crate) fn read_only(&self) -> bool {
        self.record.read_only
    }

    /// Returns the token's number.
    pub(crate) fn number(&self) -> u64 {
        self.record.token
    }

    fn good_at(&self, now: i64) -> bool {
        self.record.expires == 0 || now < self.record.expires
    }

    /// Waits until the token is revoked or expires, then returns.
    pub(crate) async fn ended(self: Arc<Self>) {
        let mut revoked = self.revoked.subscribe();
        let revoked = revoked.wait_for(|revoked| *revoked);
        if self.record.expires == 0 {
            let _ = revoked.await;
            return;
        }
        let left = self.record.expires.saturating_sub(clock::now_ns()).max(0);
        let left = Duration::from_nanos(left.unsigned_abs());
        let _ = tokio::time::timeout(left, revoked).await;
    }

    /// Returns the token's public data, which does not include the secret.
    pub(crate) fn shown(&self) -> v1::AccessToken {
        v1::AccessToken {
            token: self.record.token,
            uid: self.record.uid,
            read_only: self.record.read_only,
            created: self.record.created,
            expires: self.record.expires,
            used: self.used.load(Ordering::Relaxed),
            note: self.record.note.clone(),
        }
    }

    fn of(record: TokenRecord) -> Self {
        Self {
            record,
            used: AtomicI64::new(0),
            revoked: watch::Sender::new(false),
        }
    }
}

fn hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Deletes expired tokens of a kind to make space for another token. Fails if there are already `most` valid tokens of that kind.
fn make_space(
    by_hash: &mut ByHash,
    now: i64,
    most: usize,
    alike: impl Fn(&Token) -> bool,
) -> Result<(), TokensError> {
    let full = |by_hash: &ByHash| by_hash.values().filter(|token| alike(token)).count() >= most;
    if full(by_hash) {
        by_hash.retain(|_, token| token.good_at(now) || !alike(token));
    }
    if full(by_hash) {
        return Err(TokensError::Full(most));
    }
    Ok(())
}

impl Tokens {
    /// Reads the file with the tokens. If the file does not exist, there are no tokens.
    pub(crate) fn open(path: &Path) -> Result<Self, TokensError> {
        let shown = || path.display().to_string();
        let broken = |reason: String| TokensError::Broken {
            path: shown(),
            reason,
        };
        let file = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => TokenFile {
                version: VERSION,
                next: 1,
                tokens: Vec::new(),
            },
            Err(reason) => {
                return Err(TokensError::File {
                    path: shown(),
                    reason,
                });
            }
            Ok(text) => serde_json::from_slice::<TokenFile>(&text)
                .map_err(|error| broken(error.to_string()))?,
        };
        if file.version != VERSION {
            return Err(broken(format!("version {}", file.version)));
        }
        let by_hash = file.tokens.into_iter();
        let by_hash = by_hash.map(|record| (record.hash.clone(), Arc::new(Token::of(record))));
        Ok(Self {
            path: path.to_owned(),
            next: Mutex::new(file.next),
            by_hash: RwLock::new(by_hash.collect()),
        })
    }

    /// Returns the token with this secret, if the token is valid.
    pub(crate) fn find(&self, secret: &str) -> Option<Arc<Token>> {
        let now = clock::now_ns();
        let found = self.by_hash.read().get(&hash(secret)).cloned();
        let token = found.filter(|token| token.good_at(now))?;
        token.used.store(now, Ordering::Relaxed);
        Some(token)
    }

    /// Creates a token. Returns the token and its secret, which is stored nowhere.
    pub(crate) fn create(&self, wanted: NewToken) -> Result<(Arc<Token>, String), TokensError> {
        let now = clock::now_ns();
        if wanted.note.len() > NOTE_BYTES_MAX || wanted.note.contains(char::is_control) {
            return Err(TokensError::Note);
        }
        if wanted.expires != 0 && wanted.expires <= now {
            return Err(TokensError::Expired);
        }
        let secret = new_token();
        let mut next = self.next.lock();
        let mut by_hash = self.by_hash.read().clone();
        by_hash.retain(|_, token| token.good_at(now.saturating_sub(EXPIRED_KEPT_NS)));
        if wanted.uid.is_some() {
            make_space(&mut by_hash, now, OWN_MAX, |token| {
                token.uid() == wanted.uid
            })?;
        }
        make_space(&mut by_hash, now, TOKENS_MAX, |_| true)?;
        let token = Arc::new(Token::of(TokenRecord {
            token: *next,
            hash: hash(&secret),
            uid: wanted.uid,
            read_only: wanted.read_only,
            created: now,
            expires: wanted.expires,
            note: wanted.note,
        }));
        by_hash.insert(token.record.hash.clone(), token.clone());
        self.keep(*next + 1, by_hash)?;
        *next += 1;
        Ok((token, secret))
    }

    /// Returns the token with this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Token>> {
        let by_hash = self.by_hash.read();
        let mut tokens = by_hash.values();
        tokens.find(|token| token.number() == number).cloned()
    }

    /// Returns all tokens, or the tokens of one user, in the order of their numbers.
    pub(crate) fn list(&self, of: Option<u32>) -> Vec<Arc<Token>> {
        let by_hash = self.by_hash.read();
        let wanted = |token: &&Arc<Token>| of.is_none() || token.uid() == of;
        let mut tokens: Vec<_> = by_hash.values().filter(wanted).cloned().collect();
        drop(by_hash);
        tokens.sort_by_key(|token| token.number());
        tokens
    }

    /// Revokes a token. Succeeds also if the token was revoked before.
    pub(crate) fn revoke(&self, token: &Token) -> Result<(), TokensError> {
        let next = self.next.lock();
        let mut by_hash = self.by_hash.read().clone();
        by_hash.remove(&token.record.hash);
        self.keep(*next, by_hash)?;
        token.revoked.send_replace(true);
        Ok(())
    }

    /// Stores the new list of tokens in the file, then replaces the tokens in memory. The caller holds the lock of the next number.
    fn keep(&self, next: u64, by_hash: ByHash) -> Result<(), TokensError> {
        let mut tokens: Vec<_> = by_hash.values().map(|one| one.record.clone()).collect();
        tokens.sort_by_key(|record| record.token);
        let file = TokenFile {
            version: VERSION,
            next,
            tokens,
        };
        let at = |reason| TokensError::File {
            path: self.path.display().to_string(),
            reason,
        };
        let text = serde_json::to_string_pretty(&file).map_err(|error| at(error.into()))?;
        write_private(&self.path, &text).map_err(at)?;
        *self.by_hash.write() = by_hash;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn of(uid: u32) -> NewToken {
        NewToken {
            uid: Some(uid),
            ..NewToken::default()
        }
    }

    #[test]
    fn token_stays_valid_after_server_restart_until_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let tokens = Tokens::open(&path).unwrap();
        let (first, one) = tokens.create(of(7)).unwrap();
        let (_, two) = tokens.create(of(8)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&one), "the secret itself is not kept");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let tokens = Tokens::open(&path).unwrap();
        let found = tokens.find(&one).unwrap();
        assert_eq!((found.uid(), found.number()), (Some(7), first.number()));
        // The hash in the file grants nothing.
        assert!(tokens.find(&hash(&one)).is_none());
        tokens.revoke(&found).unwrap();
        assert!(tokens.find(&one).is_none() && tokens.find(&two).is_some());
        let tokens = Tokens::open(&path).unwrap();
        assert!(tokens.find(&one).is_none() && tokens.find(&two).is_some());
        let (third, _) = tokens.create(of(7)).unwrap();
        assert_eq!(third.number(), 3, "numbers are not issued again");
    }

    #[test]
    fn token_is_invalid_after_expiry_and_not_created_with_past_expiry() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        let past = NewToken {
            expires: clock::now_ns() - 1,
            ..of(7)
        };
        assert!(matches!(tokens.create(past), Err(TokensError::Expired)));
        let far = clock::now_ns() + 1_000_000_000_000;
        let (token, _) = tokens
            .create(NewToken {
                expires: far,
                ..of(7)
            })
            .unwrap();
        assert!(token.good_at(far - 1) && !token.good_at(far));
    }

    #[test]
    fn token_creation_beyond_limit_of_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        for _ in 0..OWN_MAX {
            tokens.create(of(7)).unwrap();
        }
        assert!(matches!(tokens.create(of(7)), Err(TokensError::Full(_))));
        tokens.create(of(8)).unwrap();
        let noted = NewToken {
            note: "a\x1b[2Jb".into(),
            ..of(8)
        };
        assert!(matches!(tokens.create(noted), Err(TokensError::Note)));
    }

    #[test]
    fn token_lookup_does_not_wait_for_creation() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        let (token, secret) = tokens.create(of(7)).unwrap();
        // This is the lock that a writer of the file holds for as long as the disk takes.
        let changing = tokens.next.lock();
        let found = tokens.find(&secret).unwrap();
        assert_eq!(found.number(), token.number());
        assert!(tokens.get(token.number()).is_some() && tokens.list(Some(7)).len() == 1);
        drop(changing);
        tokens.revoke(&token).unwrap();
        assert!(tokens.find(&secret).is_none());
    }

    #[test]
    fn expired_tokens_do_not_count_towards_token_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let write = |numbers: std::ops::RangeInclusive<usize>, uid| {
            let expired = numbers.map(|number| TokenRecord {
                token: number as u64,
                hash: number.to_string(),
                uid: Some(uid),
                read_only: false,
                created: 1,
                expires: clock::now_ns() - 1,
                note: String::new(),
            });
            let file = TokenFile {
                version: VERSION,
                next: TOKENS_MAX as u64 + 1,
                tokens: expired.collect(),
            };
            std::fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
            Tokens::open(&path).unwrap()
        };
        let tokens = write(1..=OWN_MAX - 1, 7);
        tokens.create(of(7)).unwrap();
        assert_eq!(tokens.list(None).len(), OWN_MAX, "they are listed");
        tokens.create(of(7)).unwrap();
        assert_eq!(tokens.list(None).len(), 2, "until their place is needed");
        let tokens = write(1..=TOKENS_MAX, 9);
        tokens.create(of(7)).unwrap();
        assert_eq!(tokens.list(None).len(), 1);
    }

    #[tokio::test]
    async fn token_revocation_wakes_waiting_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        let (token, _) = tokens.create(of(7)).unwrap();
        let ended = tokio::spawn(token.clone().ended());
        tokens.revoke(&token).unwrap();
        ended.await.unwrap();
    }

    #[test]
    fn token_file_of_other_format_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        for text in ["", "{}", r#"{"version": 9, "next": 1, "tokens": []}"#] {
            std::fs::write(&path, text).unwrap();
            let error = Tokens::open(&path).unwrap_err();
            assert!(matches!(error, TokensError::Broken { .. }), "{error}");
        }
    }
}
