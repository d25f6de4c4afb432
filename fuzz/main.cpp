#include "fuzz/sumzero.hpp"

int main(int argc, char** argv) { return sumzero::main(argc, argv); }
