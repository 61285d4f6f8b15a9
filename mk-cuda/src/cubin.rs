//! Machine code as a file: whether all of it is there. The driver is given an address only, and reads as far as the file's
//! own tables say.

/// Sizes of a 64-bit ELF file's header and of an entry of its section table.
const HEADER: usize = 64;
const SECTION: usize = 64;
/// A section that takes no bytes of the file: `SHT_NOBITS`.
const NO_BYTES: u32 = 8;

/// What is wrong with it, if it is not one whole 64-bit ELF file.
pub(crate) fn check(file: &[u8]) -> Result<(), String> {
    // Magic number, 64 bits, little-endian.
    if file.len() < HEADER || file[..6] != *b"\x7fELF\x02\x01" {
        return Err("it is no 64-bit ELF file".into());
    }
    let whole = || {
        let [programs, sections] = [number::<8>(file, 32)?, number::<8>(file, 40)?];
        let [program_bytes, program_count, section_bytes, section_count] =
            [54, 56, 58, 60].map(|at| number::<2>(file, at));
        fits(file, programs, program_bytes? * program_count?)?;
        let (section_bytes, section_count) = (section_bytes?, section_count?);
        fits(file, sections, section_bytes * section_count)?;
        if section_count > 0 && section_bytes != SECTION as u64 {
            return None;
        }
        for i in 0..usize::try_from(section_count).ok()? {
            let at = usize::try_from(sections).ok()? + i * SECTION;
            if number::<4>(file, at + 4)? != u64::from(NO_BYTES) {
                fits(file, number::<8>(file, at + 24)?, number::<8>(file, at + 32)?)?;
            }
        }
        Some(())
    };
    whole().ok_or_else(|| {
        format!("a part of it is missing: {} bytes are not all that its tables name", file.len())
    })
}

/// `N` bytes as a number.
fn number<const N: usize>(file: &[u8], at: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

fn fits(file: &[u8], at: u64, bytes: u64) -> Option<()> {
    (at.checked_add(bytes)? <= file.len() as u64).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that a linker made.
    fn program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_file_that_a_linker_made_is_whole_and_any_shorter_one_is_not() {
        let file = program();
        assert_eq!(check(&file), Ok(()));
        for n in [0, 1, 5, 63, 64, 65, file.len() / 2, file.len() - 1] {
            assert!(check(&file[..n]).is_err(), "{n} bytes");
        }
        assert!(check(b"// PTX").unwrap_err().contains("no 64-bit ELF"));
    }

    #[test]
    fn tables_that_name_what_is_not_there_are_found() {
        let file = program();
        // Where the two tables are, and how large an entry of the second one is.
        for field in [32..40, 40..48, 58..60] {
            let mut wrong = file.clone();
            wrong[field.clone()].fill(0xff);
            assert!(check(&wrong).unwrap_err().contains("missing"), "{field:?}");
        }
    }
}
