//! Types of files by the ends of their names: what a file holds is not looked at.

const TYPES: [(&str, &str); 44] = [
    ("avi", "video/x-msvideo"),
    ("bz2", "application/x-bzip2"),
    ("c", "text/x-c"),
    ("csv", "text/csv"),
    ("dat", "application/octet-stream"),
    ("fasta", "text/x-fasta"),
    ("fastq", "text/x-fastq"),
    ("fits", "application/fits"),
    ("fts", "application/fits"),
    ("gif", "image/gif"),
    ("grb", "application/x-grib"),
    ("grib", "application/x-grib"),
    ("gz", "application/gzip"),
    ("h5", "application/x-hdf5"),
    ("hdf", "application/x-hdf"),
    ("hdf5", "application/x-hdf5"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("json", "application/json"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("mp4", "video/mp4"),
    ("nc", "application/netcdf"),
    ("nc4", "application/netcdf"),
    ("nii", "application/x-nifti"),
    ("npy", "application/x-npy"),
    ("npz", "application/x-npz"),
    ("parquet", "application/vnd.apache.parquet"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("ps", "application/postscript"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("tsv", "text/tab-separated-values"),
    ("txt", "text/plain"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// The type of a file of this name; `application/octet-stream` if it is not known.
#[must_use]
pub fn of_name(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    let known = TYPES
        .iter()
        .find(|(known, _)| end.eq_ignore_ascii_case(known));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

/// Whether a type, or a pattern such as `image/*`, means some type that is known here.
pub(super) fn is_known(wanted: &regex::Regex) -> bool {
    TYPES.iter().any(|(_, kind)| wanted.is_match(kind))
}
