//! Random programs, mutants, planted faults and a brute-force scheduler, for tests.
