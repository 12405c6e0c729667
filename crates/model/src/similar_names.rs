//! Names that were probably meant, for "did you mean" in errors. One measure serves settings of scripts, keys of planning files, files that
//! jobs wait for and paths on the command line.

/// Returns the name among `valid` that `name` was probably meant to be.
#[must_use]
pub fn nearest(name: &str, valid: &[&str]) -> Option<String> {
    /// Maximum number of characters of a misspelt name; longer names count as different names.
    const MAX_CHARS: usize = 64;
    if name.chars().count() > MAX_CHARS {
        return None;
    }
    let scored = valid
        .iter()
        .map(|&candidate| (distance(name, candidate), candidate));
    let (edits, best) = scored.min()?;
    // Names of one letter differ by one letter, but have nothing in common.
    let common = edits < name.chars().count().max(best.chars().count());
    (common && edits <= 1 + best.len() / 4).then(|| best.to_owned())
}

/// Returns the middle part of an error about an unknown name, between the name and "may have: …".
pub fn did_you_mean(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean \"{nearest}\"? It"),
        None => "; it".to_owned(),
    }
}

/// Returns the nearest name of a file, like [`nearest`], but treats numbered names as different: `part-2` is not `part-1` misspelt.
#[must_use]
pub fn nearest_file(name: &str, files: &[&str]) -> Option<String> {
    let plain = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let likely: Vec<&str> = files
        .iter()
        .copied()
        .filter(|file| plain(file) != plain(name))
        .collect();
    nearest(name, &likely)
}

/// Maximum number of misspelt components of one path.
const CORRECTED_MAX: usize = 3;

/// Maximum number of components of a path that is searched: each component needs a look-up in its directory.
pub const PARTS_MAX: usize = 64;

/// Returns the path that was probably meant by a path that does not exist: each missing component is replaced by the nearest name in its
/// directory. `there` returns whether a full path exists, and `siblings` lists the names in the directory of a full path; both use the
/// rights of the caller. Returns `None` if no name is near, if the path exists, or if it has more than [`PARTS_MAX`] components.
#[must_use]
pub fn nearest_path(
    path: &str,
    there: impl Fn(&str) -> bool,
    siblings: impl Fn(&str) -> Vec<String>,
) -> Option<String> {
    let mut meant = path.trim_end_matches('/').to_owned();
    if meant.matches('/').count() > PARTS_MAX {
        return None;
    }
    for corrected in 0..=CORRECTED_MAX {
        let ends = meant
            .match_indices('/')
            .map(|(at, _)| at)
            .filter(|&at| at > 0);
        let mut ends = ends.chain([meant.len()]);
        let Some(end) = ends.find(|&end| !there(&meant[..end])) else {
            return (corrected > 0).then_some(meant);
        };
        let (directory, name) = meant[..end].rsplit_once('/')?;
        let names = siblings(&meant[..end]);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let nearest = nearest_file(name, &names);
        let nearest = nearest.filter(|_| corrected < CORRECTED_MAX);
        meant = match nearest {
            Some(nearest) => format!("{directory}/{nearest}{}", &meant[end..]),
            // The directory that was meant is found, but no entry in it is near.
            None if corrected > 0 && !directory.is_empty() => return Some(directory.to_owned()),
            None => return None,
        };
    }
    None
}

/// Returns the number of insertions, removals and replacements between two names, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_path_corrects_each_part() {
        let tree = [
            "/raw",
            "/raw/values.f64",
            "/raw/2024",
            "/raw/2024/part-1.fits",
            "/sw",
        ];
        let there = |path: &str| path.is_empty() || tree.contains(&path);
        let siblings = |path: &str| {
            let (directory, _) = path.rsplit_once('/').unwrap();
            let inside = tree.iter().filter_map(|path| path.rsplit_once('/'));
            let names = inside.filter(|(above, _)| *above == directory);
            names.map(|(_, name)| name.to_owned()).collect()
        };
        let meant = |path: &str| nearest_path(path, there, siblings);
        for (path, expected) in [
            ("/raw/vlaues.f64", Some("/raw/values.f64")),
            ("/raww/values.f64", Some("/raw/values.f64")),
            ("/raww/valuse.f64", Some("/raw/values.f64")),
            ("/raww/", Some("/raw")),
            ("/raww/nothing-like-it", Some("/raw")),
            ("/raw/nothing-like-it", None),
            ("/raw/2024/part-2.fits", None),
            ("/raw/2023", None),
            ("/raw/values.f64", None),
            ("/raw", None),
            ("/", None),
            ("", None),
            ("/nothing/like/it", None),
            ("/raww".repeat(PARTS_MAX + 1).as_str(), None),
        ] {
            assert_eq!(meant(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn nearest_name_accepts_only_small_differences() {
        let valid = ["input", "output", "kernel", "lifetime"];
        assert_eq!(nearest("inputs", &valid).as_deref(), Some("input"));
        assert_eq!(nearest("Kernal", &valid).as_deref(), Some("kernel"));
        assert_eq!(nearest("livetime", &valid).as_deref(), Some("lifetime"));
        assert_eq!(nearest("colour", &valid), None);
        assert_eq!(nearest("x", &["w"]), None);
        assert_eq!(nearest("ww", &["w"]).as_deref(), Some("w"));
        let files = ["part-1.fits", "access.log"];
        assert_eq!(nearest_file("part-2.fits", &files), None);
        assert_eq!(
            nearest_file("acces.log", &files).as_deref(),
            Some("access.log")
        );
    }
}
