//! Facts of the machine code itself, where CUDA's disassembler is installed.

use serde::Serialize;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a disassembler finds in the machine code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MachineCode {
    /// Instructions in all.
    pub instructions: u32,
    /// Tensor core instructions of a warpgroup (`HGMMA`).
    pub hgmma: u32,
    /// Tensor and bulk copies (`UTMALDG`, `UTMASTG`, `UBLKCP`, `UTMAREDG`, `UBLKRED`).
    pub bulk_copies: u32,
    /// Loads through the non-coherent path (`LDG...CONSTANT`).
    pub non_coherent_loads: u32,
    /// Loads and stores of a thread's own memory: spills and arrays (`LDL`, `STL`).
    pub local_accesses: u32,
    /// Calls (`CALL`).
    pub calls: u32,
    /// Barriers (`BAR.SYNC`, `BAR.RED`).
    pub barriers: u32,
    /// Loops that look after threads which have left their warp (`YIELD`). One loop that some threads of a warp leave before
    /// others makes the compiler do so in all of the kernel, and each turn of each then takes longer.
    pub yields: u32,
}

impl MachineCode {
    /// The facts of a cubin; `None` where no `nvdisasm` is installed, in `PATH`, or in the `bin` of `CUDA_HOME`,
    /// `CUDA_PATH` or `/usr/local/cuda`, or where it does not understand the cubin.
    pub fn of(cubin: &[u8]) -> Option<MachineCode> {
        let mut file = tempfile::Builder::new().suffix(".cubin").tempfile().ok()?;
        file.write_all(cubin).ok()?;
        tools().into_iter().find_map(|tool| {
            let done = Command::new(tool).arg("-c").arg(file.path()).output().ok()?;
            let facts = MachineCode::parse(&String::from_utf8_lossy(&done.stdout));
            (done.status.success() && facts.instructions > 0).then_some(facts)
        })
    }

    /// Reads the text that `nvdisasm -c`, or `cuobjdump -sass`, prints.
    pub fn parse(text: &str) -> MachineCode {
        let mut facts = MachineCode::default();
        for op in text.lines().filter_map(opcode) {
            facts.instructions += 1;
            let mut parts = op.split('.');
            let name = parts.next().unwrap_or_default();
            let with = |modifier| op.split('.').any(|m| m == modifier);
            match name {
                "HGMMA" => facts.hgmma += 1,
                "UTMALDG" | "UTMASTG" | "UTMAREDG" | "UBLKCP" | "UBLKRED" => facts.bulk_copies += 1,
                "LDG" if with("CONSTANT") => facts.non_coherent_loads += 1,
                "LDL" | "STL" => facts.local_accesses += 1,
                "CALL" => facts.calls += 1,
                "BAR" if with("SYNC") || with("RED") => facts.barriers += 1,
                "YIELD" => facts.yields += 1,
                _ => {}
            }
        }
        facts
    }
}

/// `        /*0010*/              @P0 LDG.E.CONSTANT R4, desc[UR4][R2.64] ;   /* 0x... */` has `LDG.E.CONSTANT`.
fn opcode(line: &str) -> Option<&str> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    // The second line of an instruction is its code alone: `/* 0x000e... */`.
    if address.is_empty() || !address.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    rest.split_whitespace().find(|word| !word.starts_with('@') && *word != "{")
}

fn tools() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let bins = homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("bin/nvdisasm"));
    [Path::new("nvdisasm").to_path_buf()].into_iter().chain(bins.filter(|b| b.is_file())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_their_names() {
        let text = "\
	code for sm_90a
		Function : mk_kernel
	.headerflags	@\"EF_CUDA_SM90 EF_CUDA_ACCELERATORS\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                           /* 0x00000a00ff017b82 */
                                                                                    /* 0x000fe20000000800 */
        /*0010*/               @P0 LDG.E.CONSTANT R4, desc[UR4][R2.64] ;            /* 0x0000000402047981 */
        /*0020*/                   LDG.E R4, desc[UR4][R2.64] ;                     /* 0x0000000402047981 */
        /*0030*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0040*/             @!UP0 UTMALDG.2D [UR8], [UR4] ;
        /*0050*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0060*/                   BAR.ARV 0x1, 0x40 ;
        /*0070*/                   STL [R1], R4 ;
        /*0080*/                   CALL.REL.NOINC 0x100 ;
        /*0090*/                   YIELD ;
";
        let facts = MachineCode {
            instructions: 10,
            hgmma: 1,
            bulk_copies: 1,
            non_coherent_loads: 1,
            local_accesses: 1,
            calls: 1,
            barriers: 1,
            yields: 1,
        };
        assert_eq!(MachineCode::parse(text), facts);
    }
}
