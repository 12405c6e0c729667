//! Files that jobs are going to write: among the jobs that have not ended, each output has one writer, although the output has no
//! entry in the namespace until it is complete.
//!
//! The claims are kept in memory: a server that starts claims the outputs of its unfinished jobs again.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidemill_core::id::JobId;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<BTreeMap<String, JobId>>);

impl Claims {
    /// Records that a job writes these files, and these directories (with a slash at the end) with all entries below them. If other
    /// jobs write any of them, returns these and records nothing.
    pub(crate) fn claim(
        &self,
        job: JobId,
        paths: &[&str],
    ) -> Result<JobClaims<'_>, BTreeMap<String, JobId>> {
        let mut claims = self.0.lock();
        let taken = taken(&claims, paths);
        if !taken.is_empty() {
            return Err(taken);
        }
        claims.extend(paths.iter().map(|&path| (path.to_owned(), job)));
        Ok(JobClaims {
            claims: self,
            job,
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
        })
    }

    /// Returns those of these files and directories that jobs write.
    pub(crate) fn taken(&self, paths: &[&str]) -> BTreeMap<String, JobId> {
        taken(&self.0.lock(), paths)
    }

    /// Records that a job accepted earlier writes a file, unless another job has claimed the file.
    pub(crate) fn again(&self, job: JobId, path: &str) {
        self.0.lock().entry(path.to_owned()).or_insert(job);
    }

    /// Releases the claims of a job that has ended or was not accepted.
    pub(crate) fn release<'a>(&self, job: JobId, paths: impl Iterator<Item = &'a str>) {
        let mut claims = self.0.lock();
        for path in paths {
            if claims.get(path) == Some(&job) {
                claims.remove(path);
            }
        }
    }
}

/// Returns the job that writes this file or directory, one of its ancestors, or an entry below it.
fn holder(claims: &BTreeMap<String, JobId>, path: &str) -> Option<JobId> {
    let plain = path.trim_end_matches('/');
    let above = plain.rmatch_indices('/').map(|(end, _)| &plain[..=end]);
    let directory = format!("{plain}/");
    let mut directories = above.chain([directory.as_str()]);
    let within = || directories.find_map(|directory| claims.get(directory).copied());
    let found = claims.get(plain).copied().or_else(within);
    if plain.len() == path.len() {
        return found;
    }
    let below = || {
        let (first, &job) = claims.range(directory.clone()..).next()?;
        first.starts_with(&directory).then_some(job)
    };
    found.or_else(below)
}

fn taken(claims: &BTreeMap<String, JobId>, paths: &[&str]) -> BTreeMap<String, JobId> {
    let taken = paths
        .iter()
        .filter_map(|&path| Some((path.to_owned(), holder(claims, path)?)));
    taken.collect()
}

/// Claims of a job that is being accepted. They are released on drop, unless the job was accepted.
#[derive(Debug)]
pub(crate) struct JobClaims<'a> {
    claims: &'a Claims,
    job: JobId,
    paths: Vec<String>,
}

impl JobClaims<'_> {
    /// Keeps the claims: the job was accepted.
    pub(crate) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for JobClaims<'_> {
    fn drop(&mut self) {
        let paths = self.paths.iter().map(String::as_str);
        self.claims.release(self.job, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_refuses_second_writer_until_job_ends() {
        let claims = Claims::default();
        let (first, second) = (JobId(1), JobId(2));
        claims.claim(first, &["/a", "/b"]).unwrap().keep();
        let taken = claims.claim(second, &["/b", "/c"]).unwrap_err();
        assert_eq!(taken, BTreeMap::from([("/b".to_owned(), first)]));
        assert_eq!(claims.taken(&["/b", "/c"]), taken);
        drop(claims.claim(second, &["/c"]).unwrap());
        claims.again(first, "/a");
        claims.release(second, ["/a"].into_iter());
        assert!(claims.claim(second, &["/a", "/c"]).is_err());
        claims.release(first, ["/a", "/b"].into_iter());
        claims.claim(second, &["/a", "/b", "/c"]).unwrap().keep();
    }

    #[test]
    fn claim_of_directory_covers_all_paths_below() {
        let claims = Claims::default();
        let (first, second) = (JobId(1), JobId(2));
        claims.claim(first, &["/w/d/", "/w/f/g"]).unwrap().keep();
        for taken in [
            "/w/d",
            "/w/d/",
            "/w/d/e",
            "/w/d/e/f/",
            "/w/f/",
            "/w/",
            "/w/f/g/",
        ] {
            let refused = claims.claim(second, &[taken]).unwrap_err();
            assert_eq!(refused, BTreeMap::from([(taken.to_owned(), first)]));
        }
        for free in ["/w/dd", "/w/c/", "/w/f/h", "/w/d!", "/w/f/gg/"] {
            drop(claims.claim(second, &[free]).unwrap());
        }
        claims.release(first, ["/w/d/", "/w/f/g"].into_iter());
        claims.claim(second, &["/w/"]).unwrap().keep();
    }
}
