//! The device library: the part of the kernel that is the same whatever handlers are registered.

macro_rules! library {
    ($($file:literal),*) => {
        &[$((concat!("mk/", $file), include_str!(concat!("../device/", $file)))),*]
    };
}

/// Name and text of each file.
pub(crate) const LIBRARY: &[(&str, &str)] = library![
    "comm.cuh",
    "context.cuh",
    "elementwise.cuh",
    "frame.cuh",
    "kernel.cuh",
    "lane.cuh",
    "number.cuh",
    "ptx.cuh",
    "records.cuh"
];

#[cfg(test)]
mod tests {
    use super::LIBRARY;

    #[test]
    fn every_file_of_the_folder_is_in_the_library() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/device");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            format!("mk/{}", e.unwrap().file_name().to_str().unwrap())
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        files.sort();
        assert_eq!(LIBRARY.iter().map(|(name, _)| *name).collect::<Vec<_>>(), files);
    }
}
