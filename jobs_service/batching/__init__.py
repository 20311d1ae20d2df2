"""Operations of many callers in few transactions, and how such transactions follow each other."""
